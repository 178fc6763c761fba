"""What Spark's event log says of an application. Format: JsonProtocol of Spark, one event a line."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

# Settings of Spark for a log that is one file of text.
SETTINGS = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}


def tasks_by_executor(folder: Path, of: str = "") -> Counter[str]:
    """How many tasks each executor has done, by its id, of the only application whose log is in the folder.

    of: a part of the stage's name, as the file that has it run.
    """
    (log,) = [file for file in folder.iterdir() if file.stat().st_size]
    events = [json.loads(line) for line in log.read_text().splitlines()]
    begun = [event["Stage Info"] for event in events if event["Event"] == "SparkListenerStageSubmitted"]
    stages = {stage["Stage ID"] for stage in begun if of in stage["Stage Name"]}
    ended = [event for event in events if event["Event"] == "SparkListenerTaskEnd" and event["Stage ID"] in stages]
    return Counter(
        event["Task Info"]["Executor ID"] for event in ended if event["Task End Reason"]["Reason"] == "Success"
    )
