"""Values of fake tensors: answers when a program reads one; imports torch."""
