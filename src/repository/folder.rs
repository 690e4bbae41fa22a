//! The local folder that a bundle is written to. Files that Kivu did not write are neither removed nor replaced.

use std::{
    collections::BTreeSet,
    env, fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use uuid::Uuid;

use super::{bundle::MANIFEST, manifest::Manifest};
use crate::repository::manifest::File;
use kivu_base::{Error, Result, regular_file};

/// A folder that a bundle may be written to: missing, empty, or with a bundle and nothing else.
///
/// - A bundle is a valid `manifest.toml` and regular files that it lists, some of which may be missing.
/// - A symbolic link is followed: the folder that it refers to is replaced. Links inside the folder do not
///   belong to a bundle.
#[derive(Debug)]
pub struct Destination {
    /// The caller's path, for messages.
    name: PathBuf,
    /// The path without links, if it exists.
    path: PathBuf,
}

impl Destination {
    /// Checks that nothing would be lost at `out`; otherwise, the error names the files.
    pub fn new(out: &Path) -> Result<Self> {
        let found = regular_file::if_exists(fs::symlink_metadata(out));
        let path = match found.map_err(Error::cannot("read", out.display()))? {
            Some(_) => {
                fs::canonicalize(out).map_err(Error::cannot("follow the link", out.display()))?
            }
            None => out.to_owned(),
        };
        let destination = Self {
            name: out.to_owned(),
            path,
        };
        destination.contents(&destination.path)?;
        destination.require_movable()?;
        Ok(destination)
    }

    /// Refuses folders that cannot be replaced: mount points, and this process's working folder.
    fn require_movable(&self) -> Result<()> {
        let device = |path: &Path| path.metadata().map(|found| found.dev()).ok();
        let is_mounted = matches!((device(&self.path), device(self.parent())), (Some(own), Some(outer)) if own != outer);
        let is_working_folder = env::current_dir().is_ok_and(|here| here.starts_with(&self.path));
        let (found, hint) = match (is_mounted, is_working_folder) {
            (false, false) => return Ok(()),
            (true, _) => ("a file system is mounted there", "choose a folder in it"),
            (false, true) => (
                "it is, or contains, the working folder",
                "choose another folder",
            ),
        };
        Err(
            Error::config(format!("cannot replace `{}`: {found}", self.name.display()))
                .with_hint(hint),
        )
    }

    /// The parent folder; scratch folders in it are on the same file system.
    pub fn parent(&self) -> &Path {
        match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        }
    }

    /// The path with `.ENDING` appended to its name.
    pub fn sibling(&self, ending: &str) -> PathBuf {
        sibling(&self.path, ending)
    }

    /// Moves the finished bundle from `new`, which must be on the same file system.
    ///
    /// An older bundle is exchanged for the new one atomically, checked again, and then removed file by file.
    pub fn replace(&self, new: &Path) -> Result<()> {
        let failed = || Error::cannot("write", self.name.display());
        match fs::rename(new, &self.path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            // `rename` replaces only empty folders.
            renamed => return renamed.map_err(failed()),
        }
        exchange(new, &self.path).map_err(failed())?;
        // Another program may have written into the folder since the first check.
        let manifest = self.contents(new).inspect_err(|_| {
            // Only the first error is reported.
            let _ = exchange(new, &self.path);
        })?;
        let removed = manifest.map_or(Ok(()), |manifest| remove(new, &manifest.files));
        if removed.is_err() {
            let kept = self.sibling(&format!("replaced-{}", Uuid::new_v4()));
            let _ = fs::rename(new, &kept);
            tracing::warn!(folder = %kept.display(), "cannot remove the bundle that was replaced");
        }
        Ok(())
    }

    /// Manifest of the bundle in `folder`; `None` if the folder is empty or missing.
    fn contents(&self, folder: &Path) -> Result<Option<Manifest>> {
        let refused = |found: String, source: Option<Error>| {
            let message = format!(
                "expected `{}` to be a bundle, an empty folder or nothing, but found {found}",
                self.name.display()
            );
            let error = Error::Config {
                message: message.into(),
                source: source.map(Into::into),
            };
            error.with_hint("choose another folder")
        };
        match fs::symlink_metadata(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Ok(found) if !found.is_dir() => return Err(refused("a file".into(), None)),
            _ => {}
        }
        let (manifest, unreadable) = match read_manifest(folder) {
            Ok(manifest) => (manifest, None),
            Err(error) => (None, Some(error)),
        };
        let files = manifest.as_ref().map(|manifest| manifest.files.as_slice());
        let foreign = foreign(folder, files).map_err(Error::cannot("read", self.name.display()))?;
        if foreign.is_empty() {
            Ok(manifest)
        } else {
            Err(refused(list(&foreign), unreadable))
        }
    }
}

/// Removes a bundle. Returns its files' size in bytes.
///
/// # Errors
/// The folder has other files. If its manifest is damaged, `names` are the file names that bundles use.
pub fn remove_bundle(folder: &Path, names: &[&str]) -> Result<u64> {
    let failed = || Error::cannot("remove", folder.display());
    if read_manifest(folder).ok().flatten().is_some() {
        Destination::new(folder)?;
    } else {
        let is_known = |name: &PathBuf| {
            name.to_str()
                .is_some_and(|name| name == MANIFEST || names.contains(&name))
        };
        let found = foreign(folder, None).map_err(failed())?;
        let others: Vec<PathBuf> = found.into_iter().filter(|name| !is_known(name)).collect();
        if !others.is_empty() {
            return Err(Error::config(format!(
                "expected only files of a bundle in `{}`, whose manifest is damaged, but found {}",
                folder.display(),
                list(&others)
            ))
            .with_hint("move them away, or remove the folder"));
        }
    }
    let sizes = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|file| file.metadata().ok());
    let bytes = sizes
        .filter(fs::Metadata::is_file)
        .map(|file| file.len())
        .sum();
    fs::remove_dir_all(folder).map_err(failed())?;
    Ok(bytes)
}

/// Refuses a folder that contains anything but these bundle files, since all of it would become the bundle.
pub fn require_partial(folder: &Path, files: &[File]) -> Result<()> {
    let found = match fs::symlink_metadata(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Ok(found) if !found.is_dir() => vec![PathBuf::new()],
        _ => foreign(folder, Some(files)).map_err(Error::cannot("read", folder.display()))?,
    };
    if found.is_empty() {
        return Ok(());
    }
    Err(Error::config(format!(
        "expected `{}` to contain only files of an interrupted `kivu pull`, but found {}",
        folder.display(),
        list(&found)
    ))
    .with_hint("move it away"))
}

/// `path` with `.ENDING` appended to its name.
pub fn sibling(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(ending);
    path.with_file_name(name)
}

/// The manifest in `folder`, if it is a regular file.
fn read_manifest(folder: &Path) -> Result<Option<Manifest>> {
    let path = folder.join(MANIFEST);
    if !fs::symlink_metadata(&path).is_ok_and(|found| found.is_file()) {
        return Ok(None);
    }
    let text =
        regular_file::read_to_string(&path).map_err(Error::cannot("read", path.display()))?;
    Manifest::parse(&text).map(Some)
}

/// The sorted paths in `folder` other than the manifest and `files`; all paths if `files` is `None`.
fn foreign(folder: &Path, files: Option<&[File]>) -> io::Result<Vec<PathBuf>> {
    let files = files.map(|files| {
        files
            .iter()
            .map(|file| file.name.as_str())
            .chain([MANIFEST])
    });
    let known: BTreeSet<&Path> = files.into_iter().flatten().map(Path::new).collect();
    let (mut foreign, mut pending) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(inner) = pending.pop() {
        for entry in fs::read_dir(folder.join(&inner))? {
            let entry = entry?;
            let (name, kind) = (inner.join(entry.file_name()), entry.file_type()?);
            let has_known = || {
                known
                    .iter()
                    .any(|file| *file != name && file.starts_with(&name))
            };
            if kind.is_dir() && has_known() {
                pending.push(name);
            } else if !kind.is_file() || !known.contains(name.as_path()) {
                foreign.push(name);
            }
        }
    }
    foreign.sort();
    Ok(foreign)
}

/// The first names, for a message.
fn list(names: &[PathBuf]) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<String> = names
        .iter()
        .take(SHOWN)
        .map(|name| format!("`{}`", name.display()))
        .collect();
    let shown = if names == [PathBuf::new()] {
        "a file".into()
    } else {
        shown.join(", ")
    };
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Exchanges two folders, atomically if the file system supports it.
fn exchange(left: &Path, right: &Path) -> io::Result<()> {
    if renameat_with(CWD, left, CWD, right, RenameFlags::EXCHANGE).is_ok() {
        return Ok(());
    }
    let aside = sibling(right, &format!("replaced-{}", Uuid::new_v4()));
    fs::rename(right, &aside)?;
    fs::rename(left, right).inspect_err(|_| {
        // Only the first error is reported.
        let _ = fs::rename(&aside, right);
    })?;
    fs::rename(&aside, left)
}

/// Removes a bundle's files and folders. A folder with other files is an error and remains.
fn remove(folder: &Path, files: &[File]) -> io::Result<()> {
    let names = [MANIFEST]
        .into_iter()
        .chain(files.iter().map(|file| file.name.as_str()))
        .map(Path::new);
    let mut folders = BTreeSet::new();
    for name in names {
        regular_file::if_exists(fs::remove_file(folder.join(name)))?;
        folders.extend(name.ancestors().skip(1));
    }
    // Inner folders sort after outer ones; the bundle's own folder is removed last.
    for name in folders.into_iter().rev() {
        regular_file::if_exists(fs::remove_dir(folder.join(name)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, os::unix::fs::symlink};

    use bytes::Bytes;
    use proptest::{collection::vec, prelude::*, sample::select, test_runner::Config};

    use super::*;
    use crate::repository::Bundle;

    const OURS: &str = r#"
        format = 1
        name = "tiny"
        task = "feature-extraction"
        graph = "model.onnx"
        source = { architecture = "BertModel", from = "tiny", sha256 = "" }
        weights = { precision = "fp32", plan = "fp32" }
        signature = { inputs = [], outputs = [] }
        [embedding]
        output = "last_hidden_state"
        pooling = "mean"
        normalize = true
        dimensions = 4
        max_tokens = 8
        [[files]]
        name = "model.onnx"
        size = 1
        sha256 = ""
        blake3 = ""
        [[files]]
        name = "1/weights.bin"
        size = 1
        sha256 = ""
        blake3 = ""
    "#;
    const FILES: [&str; 3] = [MANIFEST, "model.onnx", "1/weights.bin"];
    const OTHERS: [&str; 7] = [
        "notes.txt",
        "src",
        "src/main.rs",
        "1",
        "1/notes.txt",
        "model.onnx/a",
        ".git",
    ];

    #[derive(Clone, Debug)]
    enum Entry {
        File(&'static str),
        Folder,
        Link(&'static str),
    }

    /// What exists at the new bundle's path.
    #[derive(Clone, Debug)]
    enum Place {
        Nothing,
        File,
        Folder,
        LinkToFolder,
        LinkToNothing,
    }

    type Tree = Vec<(&'static str, Entry)>;

    #[test]
    fn each_entry_of_a_manifest_is_verified() {
        let digest = format!(r#"blake3 = "{}""#, blake3::hash(b"x"));
        let once = OURS.replacen(r#"blake3 = """#, &digest, 1);
        let twice = once.replace("1/weights.bin", "model.onnx");
        let files = BTreeMap::from([("model.onnx".to_owned(), Bytes::from_static(b"x").into())]);
        let error = Bundle::in_memory(&twice, files)
            .unwrap()
            .verify()
            .unwrap_err();
        let expected = "expected `model.onnx` to have the BLAKE3";
        assert!(error.to_string().starts_with(expected), "{error}");
    }

    fn bundle() -> Tree {
        FILES
            .map(|name| (name, Entry::File(if name == MANIFEST { OURS } else { "x" })))
            .into()
    }

    /// Complete bundles, bundles with missing or additional files, other programs' folders, and arbitrary trees.
    fn tree() -> impl Strategy<Value = Tree> {
        let names: Vec<&str> = FILES.into_iter().chain(OTHERS).collect();
        let entry = prop_oneof![
            3 => select(vec!["x", "[package]\nname = 'mine'\n", OURS]).prop_map(Entry::File),
            1 => Just(Entry::Folder),
            1 => select(vec!["../precious", "../precious/notes.txt", "nowhere"]).prop_map(Entry::Link),
        ];
        let some = |most| vec((select(names.clone()), entry.clone()), 0..most);
        let parts = any::<[bool; 3]>().prop_map(|kept| {
            let kept = bundle()
                .into_iter()
                .zip(kept)
                .filter(|(_, is_kept)| *is_kept);
            kept.map(|(part, _)| part).collect()
        });
        prop_oneof![
            Just(bundle()),
            parts,
            some(4),
            some(2).prop_map(|more| [bundle(), more].concat())
        ]
    }

    /// Writes the entries; if two share a path, the first one.
    fn write(folder: &Path, tree: &Tree) {
        fs::create_dir_all(folder).unwrap();
        for (name, entry) in tree {
            let path = folder.join(name);
            if fs::symlink_metadata(&path).is_ok()
                || fs::create_dir_all(path.parent().unwrap()).is_err()
            {
                continue;
            }
            let _ = match entry {
                Entry::File(text) => fs::write(&path, text),
                Entry::Folder => fs::create_dir(&path),
                Entry::Link(target) => symlink(target, &path),
            };
        }
    }

    /// Everything below a folder: file texts and link targets.
    fn read(folder: &Path) -> BTreeMap<PathBuf, String> {
        let (mut found, mut pending) = (BTreeMap::new(), vec![folder.to_owned()]);
        while let Some(next) = pending.pop() {
            for path in fs::read_dir(next)
                .unwrap()
                .map(|entry| entry.unwrap().path())
            {
                let kind = fs::symlink_metadata(&path).unwrap();
                let what = if kind.is_symlink() {
                    format!("-> {}", fs::read_link(&path).unwrap().display())
                } else if kind.is_dir() {
                    pending.push(path.clone());
                    "folder".into()
                } else {
                    fs::read_to_string(&path).unwrap()
                };
                found.insert(path.strip_prefix(folder).unwrap().to_owned(), what);
            }
        }
        found
    }

    /// Whether a tree may be replaced, decided independently from the code.
    fn is_ours(tree: &BTreeMap<PathBuf, String>) -> bool {
        let has_manifest = tree
            .get(Path::new(MANIFEST))
            .is_some_and(|text| text == OURS);
        let is_known = |(name, what): (&PathBuf, &String)| match what.as_str() {
            "folder" => name == Path::new("1"),
            what => FILES.iter().any(|file| name == Path::new(file)) && !what.starts_with("->"),
        };
        tree.is_empty() || has_manifest && tree.iter().all(is_known)
    }

    fn below<'a>(
        tree: &'a BTreeMap<PathBuf, String>,
        folder: &str,
    ) -> BTreeMap<PathBuf, &'a String> {
        let below = tree
            .iter()
            .filter_map(|(name, what)| Some((name.strip_prefix(folder).ok()?.into(), what)));
        below
            .filter(|(name, _): &(PathBuf, _)| !name.as_os_str().is_empty())
            .collect()
    }

    #[test]
    fn nothing_that_kivu_did_not_write_is_removed_or_replaced() {
        let places = vec![
            Place::Nothing,
            Place::File,
            Place::Folder,
            Place::Folder,
            Place::LinkToFolder,
            Place::LinkToNothing,
        ];
        let config = Config {
            cases: 150,
            failure_persistence: None,
            ..Config::default()
        };
        proptest!(config, |(place in select(places), tree in tree(), late in proptest::option::of(select(OTHERS.to_vec())))| {
            let root = tempfile::tempdir().unwrap();
            let at = |name: &str| root.path().join(name);
            write(&at("precious"), &vec![("notes.txt", Entry::File("precious"))]);
            write(&at("new"), &vec![(MANIFEST, Entry::File(OURS)), ("model.onnx", Entry::File("new"))]);
            let target = if matches!(place, Place::LinkToFolder) { "linked" } else { "out" };
            match place {
                Place::Nothing => {}
                Place::File => fs::write(at("out"), "precious").unwrap(),
                Place::Folder => write(&at("out"), &tree),
                Place::LinkToFolder => {
                    write(&at("linked"), &tree);
                    symlink("linked", at("out")).unwrap();
                }
                Place::LinkToNothing => symlink("nowhere", at("out")).unwrap(),
            }
            let before = read(root.path());
            let old: BTreeMap<PathBuf, String> =
                below(&before, target).into_iter().map(|(name, what)| (name, what.clone())).collect();
            let is_free = match place {
                Place::Nothing => true,
                Place::File | Place::LinkToNothing => false,
                Place::Folder | Place::LinkToFolder => is_ours(&old),
            };
            let destination = Destination::new(&at("out"));
            prop_assert_eq!(destination.is_ok(), is_free, "{:?}", destination);
            let Ok(destination) = destination else {
                prop_assert_eq!(read(root.path()), before);
                return Ok(());
            };
            // Files that another program writes into the folder in the meantime stay.
            if let Some(name) = late && !matches!(place, Place::Nothing) {
                write(&at(target), &vec![(name, Entry::File("late"))]);
            }
            let before = read(root.path());
            let written = below(&before, target).into_iter().any(|(_, what)| what == "late");
            let replaced = destination.replace(&at("new"));
            prop_assert_eq!(replaced.is_ok(), !written, "{:?}", replaced);
            let after = read(root.path());
            if written {
                prop_assert_eq!(after, before);
                return Ok(());
            }
            prop_assert_eq!(below(&after, target), below(&before, "new"));
            let rest = |tree: &BTreeMap<PathBuf, String>| {
                let mut rest = tree.clone();
                rest.retain(|name, _| !name.starts_with(target) && !name.starts_with("new"));
                rest
            };
            prop_assert_eq!(rest(&after), rest(&before));
            prop_assert!(!at("new").exists());
        });
    }

    #[test]
    fn a_refusal_names_what_was_found() {
        let root = tempfile::tempdir().unwrap();
        let refusal = |name: &str| {
            let error = Destination::new(&root.path().join(name)).unwrap_err();
            error
                .chain()
                .replace(&root.path().display().to_string(), "[folder]")
        };
        let file = |name| (name, Entry::File("x"));
        write(
            &root.path().join("more"),
            &[bundle(), vec![file("notes.txt")]].concat(),
        );
        write(
            &root.path().join("other"),
            &["a", "b", "c/d", "e", "f"].map(file).into(),
        );
        write(
            &root.path().join("cargo"),
            &vec![(MANIFEST, Entry::File("[package]"))],
        );
        fs::write(root.path().join("file"), "").unwrap();
        insta::assert_snapshot!(refusal("more"), @"expected `[folder]/more` to be a bundle, an empty folder or nothing, but found `notes.txt`; choose another folder");
        insta::assert_snapshot!(refusal("other"), @"expected `[folder]/other` to be a bundle, an empty folder or nothing, but found `a`, `b`, `c` and 2 more; choose another folder");
        insta::assert_snapshot!(refusal("file"), @"expected `[folder]/file` to be a bundle, an empty folder or nothing, but found a file; choose another folder");
        let cargo = refusal("cargo");
        let (first, cause) = cargo.split_once(": the manifest cannot be read: ").unwrap();
        insta::assert_snapshot!(first, @"expected `[folder]/cargo` to be a bundle, an empty folder or nothing, but found `manifest.toml`; choose another folder");
        assert!(cause.contains("package"), "{cause}");
    }

    #[test]
    fn a_partial_fetch_contains_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let files = Manifest::parse(OURS).unwrap().files;
        let partial = root.path().join("out.partial");
        require_partial(&partial, &files).unwrap();
        write(&partial, &vec![("1/weights.bin", Entry::File("x"))]);
        require_partial(&partial, &files).unwrap();
        symlink(root.path().join("precious"), partial.join("model.onnx")).unwrap();
        let error = require_partial(&partial, &files).unwrap_err().to_string();
        insta::assert_snapshot!(error.replace(&root.path().display().to_string(), "[folder]"), @"expected `[folder]/out.partial` to contain only files of an interrupted `kivu pull`, but found `model.onnx`; move it away");
    }

    #[test]
    fn a_bundle_with_a_damaged_manifest_can_be_removed() {
        let root = tempfile::tempdir().unwrap();
        let bundle = root.path().join("bundle");
        let file = |name| (name, Entry::File("x"));
        let removed = || remove_bundle(&bundle, &["model.onnx", "weights.bin"]);
        write(
            &bundle,
            &["manifest.toml", "model.onnx", "notes.txt"]
                .map(file)
                .into(),
        );
        let error = removed().unwrap_err().to_string();
        insta::assert_snapshot!(error.replace(&root.path().display().to_string(), "[folder]"), @"expected only files of a bundle in `[folder]/bundle`, whose manifest is damaged, but found `notes.txt`; move them away, or remove the folder");
        fs::remove_file(bundle.join("notes.txt")).unwrap();
        assert_eq!(removed().unwrap(), 2);
        assert!(!bundle.exists());
    }
}
