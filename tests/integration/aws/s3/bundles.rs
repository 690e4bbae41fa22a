//! Pushing and pulling any bundle.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use kivu::repository::{
    Bundle,
    bundle::{MANIFEST, describe},
};
use proptest::{
    collection::{btree_map, vec},
    prelude::*,
    sample::Index,
    test_runner::Config,
};

use crate::{
    server,
    storage::{Mood, Storage, done},
};

/// File names and contents.
type Files = BTreeMap<String, Vec<u8>>;

/// Files with any bytes, some in folders, some empty, some larger than a part.
fn files() -> impl Strategy<Value = Files> {
    let name = "[a-zA-Z0-9 +%&=~é_.-]{0,8}[a-z]";
    let name = prop_oneof![
        name.prop_map(String::from),
        (name, name).prop_map(|(folder, name)| format!("{folder}-/{name}"))
    ];
    let size = prop_oneof![1 => Just(0_usize), 6 => 1..5_000_usize, 1 => (8 << 20) - 1..(8 << 20) + 3_usize];
    let contents = (vec(any::<u8>(), 1..64), size);
    btree_map(
        name,
        contents.prop_map(|(bytes, size)| bytes.into_iter().cycle().take(size).collect()),
        0..5,
    )
}

/// The bundle `model` with other files.
fn write(model: &Bundle, files: &Files, folder: &Path) -> Bundle {
    for (name, bytes) in files {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let mut manifest = model.manifest().clone();
    manifest.files = files
        .keys()
        .map(|name| describe(&folder.join(name), name.clone()).unwrap())
        .collect();
    fs::write(folder.join(MANIFEST), manifest.to_text().unwrap()).unwrap();
    Bundle::open(folder).unwrap()
}

/// All files in a folder.
fn read(folder: &Path) -> Files {
    let mut files = Files::new();
    let mut folders: Vec<PathBuf> = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for path in fs::read_dir(next)
            .unwrap()
            .map(|entry| entry.unwrap().path())
        {
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path
                    .strip_prefix(folder)
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned();
                files.insert(name, fs::read(path).unwrap());
            }
        }
    }
    files
}

/// This holds even if the server is busy most of the time, if an earlier fetch stopped partway, or if another bundle
/// had the name before.
#[test]
fn pulled_bundles_are_identical_to_pushed_ones() {
    let (Some(storage), Some((folder, model))) = (Storage::start(), server::bundle()) else {
        return;
    };
    let model = Bundle::open(&model).unwrap();
    let prefix = storage.url("models");
    let url = format!("{prefix}/{}", model.manifest().name);
    let out = folder.path().join("out");
    let config = Config {
        cases: 24,
        failure_persistence: None,
        max_shrink_iters: 40,
        ..Config::default()
    };
    proptest!(config, |(files in files(), is_busy: bool, cut in any::<Option<(Index, Index)>>())| {
        let mood = if is_busy { Mood::Busy } else { Mood::Calm };
        let source = tempfile::tempdir().unwrap();
        let bundle = write(&model, &files, source.path());
        let pushed = read(source.path());
        done(storage.kivu(mood).arg("push").arg(source.path()).arg(&prefix).env("KIVU_HOME", folder.path()));
        if let Some((file, length)) = cut && !files.is_empty() {
            let (name, bytes) = files.iter().nth(file.index(files.len())).unwrap();
            let partial = folder.path().join(format!("out.partial-{}", &bundle.digest()[..12])).join(name);
            fs::create_dir_all(partial.parent().unwrap()).unwrap();
            fs::write(partial, &bytes[..length.index(bytes.len() + 1)]).unwrap();
        }
        done(storage.kivu(mood).args(["pull", &url, "--out"]).arg(&out));
        prop_assert!(read(&out) == pushed, "{:?} came back as {:?}", pushed.keys(), read(&out).keys());
        let known = done(storage.kivu(mood).args(["pull", &url, "--out"]).arg(&out));
        prop_assert!(known.starts_with("known"), "{}", known);
    });
}
