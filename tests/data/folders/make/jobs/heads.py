"""How a log's lines begin; the environment's LOG_HEAD chooses: plain, time, json or loguru."""

import datetime
import json
import logging
import os
import sys


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        line = {
            "ts": moment,
            "level": record.levelname,
            "logger": record.name,
            "rank": int(os.environ.get("RANK", "-1")),
        }
        line["msg"] = record.getMessage()
        if record.exc_info:
            line["exc"] = self.formatException(record.exc_info)
        return json.dumps(line)


class _Loguru(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.datetime.fromtimestamp(record.created).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        place = f"{record.name}:{record.funcName}:{record.lineno}"
        text = f"{moment} | {record.levelname:<8} | {place} - {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


FORMATTERS = {
    "plain": logging.Formatter("%(message)s"),
    "time": logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"),
    "json": _Json(),
    "loguru": _Loguru(),
}


def configure() -> None:
    """Gives the root logger one handler, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FORMATTERS[os.environ.get("LOG_HEAD", "plain")])
    logging.basicConfig(level=logging.INFO, handlers=[handler])
