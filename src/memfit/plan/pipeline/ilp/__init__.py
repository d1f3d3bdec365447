"""Pipelines with several stages on a rank: integer programs and a dynamic program for one special rank."""
