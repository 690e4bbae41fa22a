"""Tests that servers share the daily quota of a key, with the template's table in the emulator.

    python tests/deploy/key_quotas.py KIVU BUNDLE
"""

import collections
import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from emulator import Emulator
from template import Template

KIVU, BUNDLE = sys.argv[1:]
PER_DAY, SENT, SERVERS = 200, 300, 3


def expect(what, expected, found):
    if expected != found:
        sys.exit(f"{what}: expected {expected!r}, but found {found!r}")


def start(line, emulator, table):
    """A server with a key, which counts in the table; returns its process and its address."""
    settings = {"KIVU_AUTH__KEYS": line, "KIVU_AUTH__QUOTA_TABLE": table}
    command = [KIVU, "serve", BUNDLE, "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, env=os.environ | emulator.environment | settings, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().split()[-1]


def send(address, key):
    """The status of a request, and when to retry."""
    request = urllib.request.Request(f"{address}/info", headers={"x-api-key": key})
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, None
    except urllib.error.HTTPError as error:
        return error.code, int(error.headers["retry-after"])


def main():
    made = subprocess.run([KIVU, "key", "alice", "--per-day", str(PER_DAY)], capture_output=True, text=True, check=True).stdout
    key, line = (each.split(maxsplit=1)[1] for each in made.splitlines())
    with tempfile.TemporaryDirectory() as folder, Emulator(Path(folder, "log")) as emulator:
        dynamodb = emulator.client("dynamodb")
        described = Template({"KeyQuotas": "yes"}).properties("QuotaTable")
        lifetime = described.pop("TimeToLiveSpecification")
        dynamodb.create_table(TableName="quotas", **described)
        servers = [start(line, emulator, "quotas") for _ in range(SERVERS)]
        try:
            with ThreadPoolExecutor(8) as pool:
                found = list(pool.map(lambda number: send(servers[number % SERVERS][1], key), range(SENT)))
            statuses = collections.Counter(status for status, _ in found)
            # Requests that a server has reserved are not given to another one.
            admitted, most_reserved = statuses[200], (SERVERS - 1) * (PER_DAY // 100)
            expect("statuses", {200, 429}, set(statuses))
            expect(f"{admitted} admitted requests", True, PER_DAY - most_reserved <= admitted <= PER_DAY)
            expect("retry at midnight", True, all(1 <= after <= 86400 for status, after in found if status == 429))
            items = dynamodb.scan(TableName="quotas")["Items"]
            expect("items", [("alice", str(PER_DAY))], [(item["key"]["S"], item["used_requests"]["N"]) for item in items])
            expect("the time to live", True, lifetime["AttributeName"] in items[0])
            dynamodb.delete_table(TableName="quotas")
            # A server whose quota is used up still refuses; one that cannot reach the table admits.
            expect("a used quota", 429, send(servers[0][1], key)[0])
            servers.append(start(line, emulator, "quotas"))
            expect("without the table", 200, send(servers[-1][1], key)[0])
        finally:
            for process, _ in servers:
                process.kill()
                process.wait()
    print(json.dumps({"admitted": admitted, "refused": statuses[429]}))


if __name__ == "__main__":
    main()
