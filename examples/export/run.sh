memfit measure -q --no-report -f -o memfit-runs/job -- python ../show/job.py
memfit export memfit-runs/job --to csv --table processes -f -o memfit-runs/processes.csv
memfit export memfit-runs/job --to chrome-trace -f -o memfit-runs/job.trace.json
memfit export memfit-runs/job --to perfetto -f -o memfit-runs/job.pftrace
cat memfit-runs/processes.csv
memfit export memfit-runs/job --to openmetrics | grep '^# TYPE'
memfit export ../explain/study.json --to tensorboard -f -o memfit-runs/study
