"""Training an agent that runs elsewhere: it speaks to an OpenAI endpoint, which records its tokens."""
