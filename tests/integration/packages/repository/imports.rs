//! Files in a crate do not import each other in a cycle, and use only lower layers. Cargo checks the dependencies between
//! crates, and their order is that of the table in `docs/design.md`.
//!
//! A file depends on the files that define the items it names: in `use` lines, and in paths such as `super::Item`.
//! Declaring a module (`mod child;`) and re-exporting from it (`pub use child::Item`) are not dependencies; a file that
//! uses a re-export depends on the file that defines the item. Tests are left out.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use crate::source_files::{CRATES, sources};

/// Folders and files in a crate from the highest layer to the lowest; other files of the crate have no layer.
type Layers = &'static [&'static str];

/// The crates with layers inside, as in `docs/design.md`.
const LAYERS: [(&str, Layers); 2] = [
    ("core/src", &["pipeline", "backend", "observer"]),
    ("src", &["task", "model", "repository", "aws"]),
];

/// A file as a module.
#[derive(Debug, Default)]
struct Module {
    file: String,
    parent: usize,
    children: BTreeMap<String, usize>,
    /// Paths by the names that `use` gives them.
    names: BTreeMap<String, Vec<String>>,
    /// Paths in the code, except in re-exports.
    paths: Vec<Vec<String>>,
}

/// The module tree; the first module is `lib.rs`.
struct Tree(Vec<Module>);

impl Tree {
    fn read(src: &Path) -> Self {
        let mut tree = Self(vec![Module::default()]);
        for path in sources(src, "rs") {
            let file = path.strip_prefix(src).unwrap().display().to_string();
            let names = file.trim_end_matches(".rs").trim_end_matches("/mod");
            let module = names
                .split('/')
                .filter(|name| !["lib", "main"].contains(name))
                .fold(0, |parent, name| tree.child(parent, name));
            tree.0[module].file = file;
            tree.0[module].read(&fs::read_to_string(path).unwrap());
        }
        tree
    }

    fn child(&mut self, parent: usize, name: &str) -> usize {
        let next = self.0.len();
        let child = *self.0[parent]
            .children
            .entry(name.to_owned())
            .or_insert(next);
        if child == next {
            self.0.push(Module {
                parent,
                ..Module::default()
            });
        }
        child
    }

    /// The module that defines what `path` names in `module`; `None` if that is a module or outside this crate.
    fn resolve(&self, module: usize, path: &[String]) -> Option<usize> {
        let (mut module, mut rest) = match path.first()?.as_str() {
            "crate" => (0, &path[1..]),
            "self" => (module, &path[1..]),
            "super" => (self.0[module].parent, &path[1..]),
            name if self.0[module].children.contains_key(name) => (module, path),
            name => {
                let import = self.0[module]
                    .names
                    .get(name)
                    .filter(|import| import[0] != name)?;
                return self.resolve(module, &[import, &path[1..]].concat());
            }
        };
        while let [name, after @ ..] = rest {
            if let Some(child) = self.0[module].children.get(name) {
                (module, rest) = (*child, after);
            } else if name == "super" {
                (module, rest) = (self.0[module].parent, after);
            } else if let Some(import) = self.0[module].names.get(name) {
                return self.resolve(module, &[import, after].concat());
            } else {
                return Some(module);
            }
        }
        None
    }

    /// The modules that each module depends on.
    fn dependencies(&self) -> Vec<BTreeSet<usize>> {
        let resolved = |(at, module): (usize, &Module)| {
            module
                .paths
                .iter()
                .filter_map(|path| self.resolve(at, path))
                .filter(|found| *found != at)
                .collect()
        };
        self.0.iter().enumerate().map(resolved).collect()
    }
}

impl Module {
    fn read(&mut self, text: &str) {
        let code = without_tests(&code(text));
        let tokens = tokens(&code);
        let mut tokens = tokens.iter().copied().peekable();
        let mut previous = "";
        while let Some(token) = tokens.next() {
            match token {
                "use" => {
                    let mut imports = Vec::new();
                    read_use(&mut tokens, &[], &mut imports);
                    let is_reexport = matches!(previous, "pub" | ")");
                    self.paths.extend(
                        imports
                            .iter()
                            .filter(|_| !is_reexport)
                            .map(|(_, path)| path.clone()),
                    );
                    self.names.extend(imports);
                }
                // The path in `pub(in crate::api)` is a visibility.
                "pub" if tokens.next_if_eq(&"(").is_some() => {
                    previous = tokens.find(|token| *token == ")").unwrap();
                    continue;
                }
                // A declaration; a method or a field.
                "mod" | "." => {
                    tokens.next();
                }
                name if is_name(name) => {
                    let mut path = vec![name.to_owned()];
                    while tokens.next_if_eq(&"::").is_some() {
                        path.extend(tokens.next_if(|next| is_name(next)).map(str::to_owned));
                    }
                    self.paths.push(path);
                }
                _ => {}
            }
            previous = token;
        }
    }
}

/// Reads a `use` tree into `imports`, names with their paths; returns the token after it.
fn read_use<'a>(
    tokens: &mut impl Iterator<Item = &'a str>,
    prefix: &[String],
    imports: &mut Vec<(String, Vec<String>)>,
) -> &'a str {
    let (mut path, mut alias, mut is_empty) = (prefix.to_vec(), None, true);
    loop {
        match tokens.next().unwrap() {
            "{" => {
                while read_use(tokens, &path, imports) != "}" {}
                return tokens.next().unwrap();
            }
            end @ ("," | "}" | ";") => {
                if let Some(last) = path.last().filter(|_| !is_empty) {
                    imports.push((
                        alias.map_or_else(|| last.clone(), str::to_owned),
                        path.clone(),
                    ));
                }
                return end;
            }
            "as" => alias = tokens.next(),
            "::" => {}
            part => {
                is_empty = false;
                // `a::{self}` is `a`.
                if part != "self" || path.is_empty() {
                    path.push(part.to_owned());
                }
            }
        }
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Names and numbers, `::`, and all other characters one by one.
fn tokens(code: &str) -> Vec<&str> {
    let is_part = |next: char| next.is_alphanumeric() || next == '_';
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = match rest.find(|next| !is_part(next)).unwrap_or(rest.len()) {
            0 if rest.starts_with("::") => 2,
            0 => first.len_utf8(),
            length => length,
        };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens
}

/// The code without comments, string literals and character literals.
fn code(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['/', '"', '\'']) {
        let (before, found) = rest.split_at(at);
        code.push_str(before);
        let hashes = before.len() - before.trim_end_matches('#').len();
        let is_raw = before.trim_end_matches('#').ends_with('r');
        let length = if found.starts_with("//") {
            found.find('\n').unwrap_or(found.len())
        } else if found.starts_with("/*") {
            found.find("*/").unwrap() + 2
        } else if found.starts_with('"') && is_raw {
            let end = format!("\"{}", "#".repeat(hashes));
            1 + found[1..].find(&end).unwrap() + end.len()
        } else if found.starts_with('"') || found.starts_with("'\\") {
            quoted(found)
        } else if found.starts_with('\'') && found.chars().nth(2) == Some('\'') {
            found.chars().take(3).map(char::len_utf8).sum()
        } else {
            // A division or a lifetime.
            code.push_str(&found[..1]);
            1
        };
        rest = &found[length..];
    }
    code + rest
}

/// Length of the quoted text at the start of `text`, quotes included.
fn quoted(text: &str) -> usize {
    let quote = text.as_bytes()[0];
    let mut bytes = text.bytes().enumerate().skip(1);
    while let Some((at, byte)) = bytes.next() {
        if byte == b'\\' {
            bytes.next();
        } else if byte == quote {
            return at + 1;
        }
    }
    panic!("a quote is not closed: {text}");
}

/// The code without the items after `#[cfg(test)]`.
fn without_tests(code: &str) -> String {
    let mut parts = code.split("#[cfg(test)]");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let mut depth = 0;
        let end = part.find(|next| {
            match next {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            depth == 0 && matches!(next, '}' | ';')
        });
        kept.push_str(&part[end.unwrap() + 1..]);
    }
    kept
}

/// Files per cycle: files that reach each other.
fn cycles(dependencies: &[BTreeSet<usize>]) -> BTreeSet<BTreeSet<usize>> {
    let reached = |from: usize| {
        let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(at) = next.pop() {
            next.extend(
                dependencies[at]
                    .iter()
                    .filter(|&&found| reached.insert(found)),
            );
        }
        reached
    };
    let reached: Vec<_> = (0..dependencies.len()).map(reached).collect();
    let cycle = |at: usize| {
        reached[at]
            .iter()
            .copied()
            .filter(|&other| reached[other].contains(&at))
            .collect()
    };
    (0..dependencies.len())
        .map(cycle)
        .filter(|cycle: &BTreeSet<usize>| cycle.len() > 1)
        .collect()
}

#[test]
fn files_do_not_import_each_other_in_a_cycle() {
    for folder in CRATES {
        let tree = Tree::read(&Path::new(crate::tools::ROOT).join(folder));
        let dependencies = tree.dependencies();
        let name = |module: &usize| tree.0[*module].file.as_str();
        let mut found = Vec::new();
        for cycle in cycles(&dependencies) {
            let uses = cycle.iter().map(|file| {
                let uses: Vec<_> = dependencies[*file].intersection(&cycle).map(name).collect();
                format!("  {} uses {}", name(file), uses.join(", "))
            });
            found.push(format!(
                "{} files:\n{}",
                cycle.len(),
                uses.collect::<Vec<_>>().join("\n")
            ));
        }
        assert!(
            found.is_empty(),
            "{} cycles of imports in {folder}:\n{}",
            found.len(),
            found.join("\n")
        );
    }
}

/// Pipelines run whatever implements `Backend`.
#[test]
fn pipelines_do_not_name_the_native_engine() {
    let tree = Tree::read(&Path::new(crate::tools::ROOT).join("core/src"));
    let file = |module: usize| tree.0[module].file.as_str();
    let is_implementation = |used: usize| file(used).starts_with("backend/native/");
    let dependencies = tree.dependencies();
    let users = (0..dependencies.len()).filter(|module| file(*module).starts_with("pipeline/"));
    let found: Vec<_> = users
        .flat_map(|user| {
            dependencies[user]
                .iter()
                .filter(|used| is_implementation(**used))
                .map(move |used| [user, *used])
        })
        .map(|uses| uses.map(file).join(" uses "))
        .collect();
    assert!(
        found.is_empty(),
        "expected pipelines to use traits of `backend`, but found {found:#?}"
    );
}

#[test]
fn layers_use_only_layers_below() {
    for (folder, layers) in LAYERS {
        let tree = Tree::read(&Path::new(crate::tools::ROOT).join(folder));
        let top = |module: usize| tree.0[module].file.split(['/', '.']).next().unwrap();
        let layer = |module: usize| layers.iter().position(|name| *name == top(module));
        let mut count = 0;
        let mut upward = Vec::new();
        for (user, used) in tree.dependencies().iter().enumerate() {
            for &used in used {
                let (Some(from), Some(to)) = (layer(user), layer(used)) else {
                    continue;
                };
                count += usize::from(to > from);
                if to < from {
                    upward.push(format!("{} uses {}", tree.0[user].file, tree.0[used].file));
                }
            }
        }
        assert!(count > 10, "{folder}: {count} uses of lower layers");
        assert!(
            upward.is_empty(),
            "expected only uses of lower layers in {folder}, but found {upward:#?}"
        );
    }
}

/// In the table in `docs/design.md`, a crate uses only crates in rows below its own. `kivu-readers` may use any.
#[test]
fn crates_use_crates_in_rows_below() {
    let root = Path::new(crate::tools::ROOT);
    let manifest = |folder: &str| -> toml::Table {
        let path = root.join(folder).join("Cargo.toml");
        toml::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    };
    let page = fs::read_to_string(root.join("docs/design.md")).unwrap();
    let rows: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("| `kivu"))
        .map(|line| line.split('|').nth(1).unwrap_or_default())
        .collect();
    let row = |name: &str| {
        let named = format!("`{name}`");
        rows.iter()
            .position(|row| row.contains(&named))
            .unwrap_or_else(|| panic!("the table has no `{name}`"))
    };
    let members = manifest(".")["workspace"]["members"].clone();
    let folders = members.as_array().unwrap().iter();
    let folders: Vec<&str> = folders.map(|folder| folder.as_str().unwrap()).collect();
    for folder in [&["."], &folders[..]].concat() {
        let manifest = manifest(folder);
        let name = manifest["package"]["name"].as_str().unwrap();
        let own = row(name);
        let used = manifest.get("dependencies").and_then(toml::Value::as_table);
        let upward: Vec<&String> = used
            .into_iter()
            .flat_map(toml::Table::keys)
            .filter(|used| used.starts_with("kivu") && row(used) <= own)
            .collect();
        assert!(
            upward.is_empty() || name == "kivu-readers",
            "`{name}` uses {upward:?}"
        );
    }
}
