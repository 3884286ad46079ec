"""`GRPCInferenceService` without the transport: message bytes in, message bytes out."""
