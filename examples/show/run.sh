memfit measure -q --no-report -f -o memfit-runs/job -- python job.py
memfit show memfit-runs/job
memfit show memfit-runs/job --html memfit-runs/report.html -f
