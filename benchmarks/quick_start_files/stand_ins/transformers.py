"""In place of the library: a pipeline without a model, so that the servers are measured, not the summarization."""


def pipeline(task: str, device: str):
    def summarize(texts):
        return [{"summary_text": text.partition(".")[0]} for text in texts]

    return summarize
