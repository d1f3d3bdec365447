memfit compare job.py:make --optimizer adamw,adafactor,sgd --technique plain,checkpoint,step-in-backward
