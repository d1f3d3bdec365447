memfit nni python main.py
