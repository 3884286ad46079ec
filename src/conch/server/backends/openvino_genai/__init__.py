"""Language models and sentence encoders through OpenVINO GenAI."""
