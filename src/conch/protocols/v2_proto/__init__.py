"""Messages of `GRPCInferenceService` in protobuf."""
