"""What does measuring cost, and how right is it, beside other tools on the same machine in the same minutes?

    python -m benchmarks.overhead [--quick] [--only PART ...] [-o FOLDER]

    always_on     wall and CPU of a training loop with a tool on against off      blocks inside one process
    own_cost      what a sampler itself takes                                     20 s of training
    ledger        wall and CPU of tracing layers                                  blocks, three models
    whole_runs    error of the peak, memory added to the job, share explained     whole programs
    tree          the peak of a process tree with forked data workers             whole programs

Only ratios and differences of runs that were interleaved are reported, each with its interval, next to a control in
which nothing was switched on.
"""
