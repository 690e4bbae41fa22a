"""A process with one version of the reference libraries: reads a line of JSON per request, answers with one.

`{"declared": FOLDER}` returns what the classes of a model declare: see declared.py. `{"run": FOLDER, "kind", "name",
"seed", "precision"}` returns the results of the model, or why it failed.
"""

import os

# One thread and no network, set before anything reads them.
os.environ.update(OMP_NUM_THREADS="1", RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")

import contextlib
import json
import logging
import sys
import warnings

sys.dont_write_bytecode = True
warnings.simplefilter("ignore")
OUTPUT = os.fdopen(os.dup(1), "w")
# Libraries print to standard output; the answers have one of their own.
os.dup2(2, 1)

import torch
import transformers
from declared import declared
from results import KINDS, PRECISION, Doubled

torch.set_num_threads(1)
torch.set_grad_enabled(False)
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
logging.disable(logging.ERROR)


def run(request):
    # What a file lacks is initialized at random.
    torch.manual_seed(request["seed"])
    PRECISION["dtype"] = getattr(torch, request["precision"])
    is_double = PRECISION["dtype"] is torch.float64
    try:
        with Doubled() if is_double else contextlib.nullcontext():
            return {"values": KINDS[request["kind"]](request["run"], request["name"])}
    except Exception as error:  # any failure of the reference is an outcome
        return {"failed": f"{type(error).__name__}: {error}"[:300]}


def main():
    for line in sys.stdin:
        request = json.loads(line)
        answer = declared(request["declared"]) if "declared" in request else run(request)
        OUTPUT.write(json.dumps(answer) + "\n")
        OUTPUT.flush()


main()
