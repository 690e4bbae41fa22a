"""Downloads a repository with huggingface_hub, and checks that its cache is valid.

    HF_ENDPOINT=http://127.0.0.1:8000 HF_HUB_CACHE=cache python tests/clients/download.py ORG/NAME
"""

import os
import sys

os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["HF_HUB_DISABLE_IMPLICIT_TOKEN"] = "1"
os.environ["HF_HUB_DISABLE_XET"] = "1"
os.environ.pop("HF_TOKEN", None)

from huggingface_hub import scan_cache_dir, snapshot_download  # noqa: E402

folder = snapshot_download(sys.argv[1])
names = [os.path.join(root, name) for root, _, files in os.walk(folder) for name in files]
assert names and all(os.path.getsize(name) for name in names), names
cache = scan_cache_dir()
assert not cache.warnings, cache.warnings
[repository] = cache.repos
assert repository.repo_id == sys.argv[1] and len(repository.revisions) == 1, repository
[revision] = repository.revisions
assert "main" in revision.refs, revision
assert revision.size_on_disk == sum(os.path.getsize(name) for name in names), revision
