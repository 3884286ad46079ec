from ray import serve
from ray.serve.config import HTTPOptions
from starlette.requests import Request


@serve.deployment
class InferenceEngine:
    def __init__(self):
        self.text_model = lambda x: x**2
        self.vision_model = lambda x: x**3

    async def __call__(self, request: Request):
        x = (await request.json())["input"]
        # perform calculations using both models
        a = self.text_model(x)
        b = self.vision_model(x)
        return {"output": a + b}


if __name__ == "__main__":
    serve.start(http_options=HTTPOptions(port=8000))
    serve.run(InferenceEngine.bind(), route_prefix="/predict", blocking=True)
