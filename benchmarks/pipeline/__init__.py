"""Pipelines: is the exact planner exact, does the solver agree, how long do they take, what do other cuts cost?"""
