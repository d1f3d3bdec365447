"""The `nni` package that a trial written for NNI imports, put first on its path, for Python 3.7 and later.

    nni/        stands in for NNI itself: standard library only, a few milliseconds
    bin/        nnictl, the command line of NNI
    channel/    for trials that need the installed NNI (its compression or architecture search beside the trial calls):
                NNI's own hook NNI_TRIAL_COMMAND_CHANNEL=import://memfit_nni_channel.Channel

Both speak through two files in the trial's folder: parameter.json, written before the trial starts, and metrics.jsonl,
to which each result is appended with one write, so that every line but the last is whole after any kill, and results
are kept even when memfit was not listening.
"""
