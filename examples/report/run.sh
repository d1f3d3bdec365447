memfit measure -q --no-report -f -o memfit-runs/first -- python ../serve/job.py 40
memfit report memfit-runs -f -o memfit-runs/page.html
