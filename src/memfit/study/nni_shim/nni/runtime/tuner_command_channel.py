"""Messages between an advisor and whoever runs the trials."""

from enum import Enum


class CommandType(Enum):
    """The kinds of messages: first those that an advisor gets, then those that it sends."""

    Initialize = "IN"
    RequestTrialJobs = "GE"
    ReportMetricData = "ME"
    UpdateSearchSpace = "SS"
    ImportData = "FD"
    AddCustomizedTrialJob = "AD"
    TrialEnd = "EN"
    Terminate = "TE"
    Ping = "PI"

    Initialized = "ID"
    NewTrialJob = "TR"
    SendTrialJobParameter = "SP"
    NoMoreTrialJobs = "NO"
    KillTrialJob = "KI"
    Error = "ER"
