//! Every fault in the table in `docs/reliability.md` names a test, and the test exists.

use std::fs;

use crate::{
    source_files::{CRATES, sources},
    tools::root,
};

#[test]
fn every_documented_fault_has_a_test() {
    let folders = CRATES.map(|folder| (folder, "rs"));
    let tests: String = folders
        .iter()
        .chain(&[("tests", "rs"), ("tests", "py")])
        .flat_map(|(folder, extension)| sources(&root().join(folder), extension))
        .map(|file| fs::read_to_string(file).unwrap())
        .collect();
    let page = fs::read_to_string(root().join("docs/reliability.md")).unwrap();
    let (_, faults) = page
        .split_once("\n| fault |")
        .expect("the page has a table of faults");
    let rows: Vec<&str> = faults
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert!(rows.len() > 10, "{rows:#?}");
    for row in rows {
        let named: Vec<&str> = row
            .trim_end_matches(" |")
            .rsplit(" | ")
            .next()
            .unwrap()
            .split('`')
            .collect();
        let name = named
            .get(1)
            .unwrap_or_else(|| panic!("expected a test in backquotes, but found none: {row}"));
        let exists = if name.contains('/') {
            root().join(name).is_file()
        } else {
            ["fn", "def"]
                .iter()
                .any(|word| tests.contains(&format!("{word} {name}(")))
        };
        assert!(
            exists,
            "expected a test or a file called `{name}`, but found neither: {row}"
        );
    }
}
