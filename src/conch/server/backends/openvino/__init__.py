"""OpenVINO IR, ONNX and the other formats that OpenVINO reads."""
