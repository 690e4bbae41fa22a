//! Links and tables in the documentation: relative links lead to files and headings, and all rows in a table
//! have equally many cells.

use std::{fs, path::Path, process::Command};

use crate::{
    source_files::{CRATES, sources},
    tools::root,
};

/// A document's anchors, as GitHub derives them from headings.
fn anchors(text: &str) -> Vec<String> {
    let headings = prose(text).filter_map(|(_, line)| {
        line.strip_prefix('#')
            .map(|rest| rest.trim_start_matches('#'))
    });
    let anchor = |heading: &str| {
        let kept = heading.trim().to_lowercase().replace(' ', "-");
        kept.chars()
            .filter(|next| next.is_alphanumeric() || matches!(next, '-' | '_'))
            .collect()
    };
    headings.map(anchor).collect()
}

/// Lines outside code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines()
        .enumerate()
        .map(|(at, line)| (at + 1, line))
        .filter(move |(_, line)| {
            let is_fence = line.trim_start().starts_with("```");
            is_code ^= is_fence;
            !is_code && !is_fence
        })
}

/// Why a link target is wrong, if it is.
fn fault(page: &Path, target: &str) -> Option<String> {
    if target.contains("://") {
        return None;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() {
        page.to_owned()
    } else {
        page.parent().unwrap().join(file)
    };
    if !path.exists() {
        return Some(format!("`{target}` does not exist"));
    }
    let is_known = || {
        anchors(&fs::read_to_string(&path).unwrap())
            .iter()
            .any(|known| known == anchor)
    };
    (!anchor.is_empty() && !is_known()).then(|| format!("`{target}` leads to a missing heading"))
}

#[test]
fn links_lead_to_files_and_headings_and_tables_are_regular() {
    let folders = ["docs", "examples", "models", "tests"]
        .iter()
        .flat_map(|folder| sources(&root().join(folder), "md"));
    let pages = [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "RELEASE.md",
        "llms.txt",
    ];
    let pages = pages.iter().map(|name| root().join(name));
    let mut faults = Vec::new();
    for page in folders.chain(pages) {
        let text = fs::read_to_string(&page).unwrap();
        let (mut columns, mut is_header) = (None, false);
        for (at, line) in prose(&text) {
            let targets = line
                .split("](")
                .skip(1)
                .filter_map(|rest| rest.split_once(')'));
            let mut found: Vec<_> = targets
                .filter_map(|(target, _)| fault(&page, target))
                .collect();
            let cells = line
                .starts_with('|')
                .then(|| line.replace("\\|", "").matches('|').count());
            if columns.is_some() && cells.is_some() && cells != columns {
                found.push("a row has another number of cells than the one above".to_owned());
            }
            if is_header && !line.starts_with("|--") && !line.starts_with("| --") {
                found.push("expected a row of dashes after the first row of a table".to_owned());
            }
            is_header = cells.is_some() && columns.is_none();
            columns = cells;
            faults.extend(
                found
                    .into_iter()
                    .map(|fault| format!("{}:{at}: {fault}", page.display())),
            );
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn the_index_has_every_page() {
    let index = fs::read_to_string(root().join("docs/README.md")).unwrap();
    let pages = sources(&root().join("docs"), "md");
    let missing: Vec<_> = pages
        .iter()
        .filter(|page| {
            let name = page.file_name().unwrap().to_string_lossy();
            name != "README.md" && !index.contains(&format!("({name})"))
        })
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn measurements_renew_pages_that_exist() {
    let mut list = Command::new("python3");
    list.arg("benches/run.py").current_dir(root());
    let list = list.output().unwrap();
    assert!(list.status.success(), "{list:?}");
    let list = String::from_utf8(list.stdout).unwrap();
    let pages: Vec<&str> = list
        .lines()
        .filter_map(|line| Some(line.trim_start().split_once("; ")?.0))
        .filter(|page| page.contains(".md"))
        .collect();
    assert!(pages.len() > 20, "{list}");
    let index = root().join("docs/README.md");
    let faults: Vec<String> = pages
        .iter()
        .filter_map(|page| fault(&index, page))
        .collect();
    assert!(faults.is_empty(), "{faults:#?}");
}

/// Paths that are not the repository's, though a folder there has their first name.
const OTHER_PATHS: [&str; 3] = [
    "http/protobuf",
    "onnx/model.onnx",
    "onnx/model_quantized.onnx",
];

/// Code spans that begin with a folder of the repository and have no placeholder, such as `core/src/backend`, exist.
#[test]
fn paths_in_documentation_exist() {
    let mut pages = sources(&root().join("docs"), "md");
    pages.extend(["README.md", "CONTRIBUTING.md", "RELEASE.md"].map(|name| root().join(name)));
    let is_path = |span: &&str| {
        let (folder, rest) = span.split_once('/').unwrap_or_default();
        let is_plain = |next: char| next.is_ascii_alphanumeric() || "/._-".contains(next);
        let is_named = !span.split('/').any(|part| {
            part.split('.')
                .any(|word| word.len() > 2 && word.chars().all(|next| next.is_ascii_uppercase()))
        });
        !(folder.is_empty() || rest.is_empty() || OTHER_PATHS.contains(span))
            && span.chars().all(is_plain)
            && is_named
            && folder != "target"
            && !folder.starts_with('.')
            && root().join(folder).is_dir()
    };
    let (mut count, mut missing) = (0, Vec::new());
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        for (at, line) in prose(&text) {
            for path in line.split('`').skip(1).step_by(2).filter(is_path) {
                count += 1;
                if !root().join(path).exists() {
                    missing.push(format!("{}:{at}: `{path}`", page.display()));
                }
            }
        }
    }
    assert!(count > 60, "{count} paths");
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Names of types, functions and constants that `docs/design.md` mentions are in the code or the templates.
#[test]
fn names_in_the_design_exist() {
    let folders = ["engine/src", "functions"].iter().chain(&CRATES);
    let files = folders.flat_map(|folder| sources(&root().join(folder), "rs"));
    let others = sources(&root().join("deploy"), "yaml").into_iter();
    let others = others.chain(["template.yaml", "samconfig.toml"].map(|name| root().join(name)));
    let text: String = files
        .chain(others)
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let is_name = |span: &&str| {
        let is_plain = |next: char| next.is_ascii_alphanumeric() || "_:".contains(next);
        let is_code =
            span.starts_with(|next: char| next.is_ascii_uppercase()) || span.contains('_');
        span.len() > 1 && span.chars().all(is_plain) && is_code
    };
    let page = fs::read_to_string(root().join("docs/design.md")).unwrap();
    let names: Vec<&str> = prose(&page)
        .flat_map(|(_, line)| line.split('`').skip(1).step_by(2))
        .filter(is_name)
        .collect();
    assert!(names.len() > 40, "{names:?}");
    let is_missing = |name: &&&str| !name.split("::").all(|part| text.contains(part));
    let missing: Vec<_> = names.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The defaults of parameters in `docs/deploy.md` are those of the template, where `none` and descriptions are empty.
#[test]
fn parameters_have_their_documented_defaults() {
    let template = fs::read_to_string(root().join("template.yaml")).unwrap();
    let default = |name: &str| {
        let start = format!("\n  {name}: {{ Type: ");
        let (_, rest) = template.split_once(&start)?;
        let (_, value) = rest.lines().next()?.split_once("Default: ")?;
        match value.strip_prefix('"') {
            Some(quoted) => quoted.split('"').next(),
            None => value.split([',', ' ']).next(),
        }
    };
    let page = fs::read_to_string(root().join("docs/deploy.md")).unwrap();
    let (_, table) = page.split_once("\n| parameter | default |").unwrap();
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let mut count = 0;
    for row in rows {
        let [names, defaults] = [1, 2].map(|cell| row.split('|').nth(cell).unwrap().split(','));
        for (name, stated) in names.zip(defaults) {
            let [name, stated] = [name, stated].map(|text| text.trim().trim_matches('`'));
            let found =
                default(name).unwrap_or_else(|| panic!("the template has no default of `{name}`"));
            let is_right = match found {
                "" => stated == "none" || stated.contains(' '),
                found => stated == found,
            };
            assert!(is_right, "`{name}`: {found}, but the page has {stated}");
            count += 1;
        }
    }
    assert!(count > 40, "{count}");
}
