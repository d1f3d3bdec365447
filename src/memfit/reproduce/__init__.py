"""Published results run again, published beside ours, every statement with evidence and a verdict."""
