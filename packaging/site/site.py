#!/usr/bin/env python3
"""Builds the documentation site from the Markdown files and the program's API reference.

    python3 packaging/site/site.py KIVU BUNDLE ZENSICAL WASM OUT

KIVU serves BUNDLE for the API reference; ZENSICAL is the site generator. The page `search` runs BUNDLE in the visitor's
browser, by the npm package in the folder WASM. The site is written to OUT/site. Missing pages and headings, Markdown pages
that the navigation lacks, and requests to other hosts are errors.
"""

import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "RELEASE.md", "docs", "examples"]
REFERENCE = {"docs": "index.html", "openapi.json": "openapi.json"}
# The generator's name in each page's footer, and examples.
KNOWN_HOSTS = re.compile(r"https?://(zensical\.org|127\.0\.0\.1|localhost|www\.w3\.org)\b")


def copy_pages(target):
    for name in PAGES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name)
        else:
            shutil.copy(ROOT / name, target / name)


def write_reference(kivu, bundle, target):
    """Saves the server's API reference, which is relative to its page."""
    target.mkdir()
    command = [kivu, "serve", bundle, "--listen", "127.0.0.1:0", "--until-stdin-closes"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        base = re.search(r"http://\S+", server.stdout.readline())[0]
        for path, name in REFERENCE.items():
            with urllib.request.urlopen(f"{base}/{path}", timeout=60) as response:
                (target / name).write_bytes(response.read())
        server.stdin.close()


def write_search(bundle, wasm, target):
    """Copies the page that searches in the browser, with the package and the model."""
    shutil.copytree(HERE / "search", target)
    shutil.copytree(wasm, target / "package")
    shutil.copytree(bundle, target / "model")


def listed(navigation):
    """The navigation's Markdown pages."""
    for entry in navigation:
        for target in entry.values():
            if isinstance(target, list):
                yield from listed(target)
            elif target.endswith(".md"):
                yield target


def missing_pages(config, pages):
    found = {str(path.relative_to(pages)) for folder in (pages, pages / "docs") for path in folder.glob("*.md")}
    return sorted(found - set(listed(config["project"]["nav"])))


def foreign_resources(site):
    """Resources from other hosts, by page."""
    resource = re.compile(r"""<(?:script|img|iframe)[^>]*\ssrc="(https?://[^"]+)|<link[^>]*\shref="(https?://[^"]+)""")
    for page in site.rglob("*.html"):
        for found in resource.finditer(page.read_text()):
            url = found[1] or found[2]
            if not KNOWN_HOSTS.match(url):
                yield f"{page.relative_to(site)}: {url}"


def main():
    kivu, bundle, zensical, wasm, out = map(Path, sys.argv[1:])
    shutil.rmtree(out, ignore_errors=True)
    pages = out / "pages"
    pages.mkdir(parents=True)
    config = tomllib.loads((HERE / "zensical.toml").read_text())
    shutil.copy(HERE / "zensical.toml", out)
    copy_pages(pages)
    write_reference(kivu, bundle, pages / "api-reference")
    if missing := missing_pages(config, pages):
        sys.exit(f"expected all pages in `nav` of packaging/site/zensical.toml, but it lacks {', '.join(missing)}")
    command = [zensical.absolute(), "build", "--strict", "--config-file", (out / "zensical.toml").absolute()]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode:
        sys.exit(built.stdout + built.stderr)
    site = out / "site"
    write_search(bundle, wasm, site / "search")
    if not (site / "api-reference/openapi.json").is_file() or not (site / "search.json").is_file():
        sys.exit("expected `api-reference/openapi.json` and `search.json` in the site, but found them not")
    if foreign := list(foreign_resources(site)):
        sys.exit("expected no resources from other hosts, but found\n" + "\n".join(foreign))
    print(f"{len(list(site.rglob('*.html')))} pages in {site}")


if __name__ == "__main__":
    main()
