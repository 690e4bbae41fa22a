//! Bundles for clients.

use std::{fs, os::unix::fs::symlink};

use kivu::repository::manifest::Precision;

use crate::{
    models::{build_request, fixtures, request, runtime},
    tools::root,
};

/// A folder with bundles: the ones that `make test` builds, `ner`, which labels tokens, `ner-labels`, which takes
/// labels from requests, `summary`, and models without dense vectors. The last ones have names that sort after the
/// others, since a task's first model is the default.
pub(crate) fn all_bundles() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for bundle in fs::read_dir(root().join(".kivu/bundles")).unwrap() {
        let bundle = bundle.unwrap();
        symlink(bundle.path(), folder.path().join(bundle.file_name())).unwrap();
    }
    let runtime = runtime().expect("`make test` installs ONNX Runtime");
    for (name, fixture) in [
        ("ner", "tiny-bert-ner"),
        ("ner-labels", "tiny-gliner"),
        ("summary", "tiny-bart"),
        ("vectors-colbert", "tiny-colbert-stanford"),
        ("vectors-m3", "tiny-bge-m3"),
        ("vectors-splade", "tiny-splade-bert"),
    ] {
        let source = fixtures().join("models").join(fixture);
        let mut request = request(source, folder.path().join(name), Some(Precision::Fp32));
        request.name = Some(name.into());
        build_request(&request, runtime).unwrap();
    }
    folder
}
