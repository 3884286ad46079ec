"""OpenVINO GenAI."""
