import conch


@conch.model
class InferenceEngine:
    def setup(self, device: str) -> None:
        self.text_model = lambda x: x**2
        self.vision_model = lambda x: x**3

    def predict(self, input: float) -> float:
        # perform calculations using both models
        a = self.text_model(input)
        b = self.vision_model(input)
        return a + b


if __name__ == "__main__":
    conch.serve(port=8000)
