"""Write the addresses of a release into this checkout, before it is built: `release.py chart`, `release.py package`.

Only a release knows them. VERSION, and of GitHub's variables GITHUB_SERVER_URL, GITHUB_REPOSITORY and
GITHUB_REPOSITORY_OWNER, are needed; `chart` also needs REGISTRY. HOME_URL, the address of the site of docs/, may be
empty.
"""

import os
import re
import sys
from pathlib import Path

CHART = Path("deploy/helm/group-hygiene")
_SERVER, _OWNER = os.environ["GITHUB_SERVER_URL"], os.environ["GITHUB_REPOSITORY_OWNER"]
_SOURCE = f"{_SERVER}/{os.environ['GITHUB_REPOSITORY']}"
_FILES = f"{_SOURCE}/blob/v{os.environ['VERSION']}"
_HOME = os.environ.get("HOME_URL", "").rstrip("/")


def chart() -> None:
    """Name the images that were pushed, and the project's addresses."""
    images = f"{os.environ['REGISTRY']}/{_OWNER.lower()}"
    values = (CHART / "values.yaml").read_text()
    for name in ("group-hygiene", "group-hygiene-pipeline"):
        values = values.replace('repository: ""', f"repository: {images}/{name}", 1)
    runbook = f"{_HOME}/runbook.html" if _HOME else f"{_FILES}/docs/runbook.md"
    values = values.replace("runbookUrl: docs/runbook.md", f"runbookUrl: {runbook}")
    values = _replace(
        values, "# Your registry and image name: the image is not published yet. Required.", "# Of this release."
    )
    (CHART / "values.yaml").write_text(values)
    readme = (CHART / "README.md").read_text()
    chart = f"oci://{images}/charts/group-hygiene --version {os.environ['VERSION']}"
    readme = _replace(
        readme, "helm install group-hygiene deploy/helm/group-hygiene", f"helm install group-hygiene {chart}"
    )
    readme = _replace(readme, "--set image.repository=registry.example.com/group-hygiene ", "")
    readme = _replace(
        readme,
        "The chart and the images are not published yet: install from a checkout, with an image that you built. See",
        "See",
    )
    (CHART / "README.md").write_text(_absolute(readme, "deploy/helm/group-hygiene"))
    # The annotations are last in the file.
    lines = ["  artifacthub.io/images: |"]
    for name in ("group-hygiene", "group-hygiene-pipeline"):
        lines += [f"    - name: {name}", f"      image: {images}/{name}:{os.environ['VERSION']}"]
    lines += ["sources:", f"  - {_SOURCE}", "maintainers:", f"  - name: {_OWNER}", f"    url: {_SERVER}/{_OWNER}"]
    lines += [f"home: {_HOME or _SOURCE}", *([f"icon: {_HOME}/icon.svg"] if _HOME else [])]
    with (CHART / "Chart.yaml").open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def package() -> None:
    """Make the links of the README absolute, and add the project's addresses to the metadata."""
    readme = Path("README.md")
    unpublished = "pip install .        # in a checkout; no package is published yet"
    text = _replace(
        readme.read_text(), unpublished, "pip install kafka-group-hygiene        # the examples are in the repository"
    )
    readme.write_text(_absolute(text, "."))
    urls = {"Homepage": _HOME or _SOURCE, "Source": _SOURCE, "Changelog": f"{_FILES}/CHANGELOG.md"}
    urls |= {"Documentation": f"{_HOME}/index.html"} if _HOME else {}
    with Path("pyproject.toml").open("a") as file:
        file.writelines(["\n[project.urls]\n", *(f'{name} = "{url}"\n' for name, url in urls.items())])


def _replace(text: str, unpublished: str, published: str) -> str:
    """What only a checkout says; ends the program if it does not say it, as after another wording."""
    if unpublished not in text:
        sys.exit(f"not found: {unpublished}")
    return text.replace(unpublished, published)


def _absolute(markdown: str, folder: str) -> str:
    """With links to the published site for pages of docs/, if there is one, and to the repository for all else."""

    def url(match: re.Match[str]) -> str:
        target, mark, anchor = match[1].partition("#")
        path = os.path.normpath(os.path.join(folder, target))
        page = re.fullmatch(r"docs/(.+)\.md", path)
        address = f"{_HOME}/{page[1]}.html" if page and _HOME else f"{_FILES}/{path}"
        return f"]({address}{mark}{anchor})"

    return re.sub(r"\]\((?![a-z]+:|#)([^)\s]+)\)", url, markdown)


if __name__ == "__main__":
    {"chart": chart, "package": package}[sys.argv[1]]()
