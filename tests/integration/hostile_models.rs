//! The files of a model as somebody with bad intentions writes them: refused in words, without a panic, and with
//! nothing read outside of their folder.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use kivu::{
    Error,
    build::{onnx, onnx::proto::ModelProto},
    repository::{Bundle, bundle::describe},
};
use prost::Message;
use serde_json::{Value, json};

use crate::{
    models::{build_request, fixtures, request, runtime, serve},
    serving::bundle,
};

/// A copy of a fixture that can be changed.
fn copied(name: &str, folder: &Path) -> PathBuf {
    let to = folder.join("source");
    copy(&fixtures().join(name), &to);
    to
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// Changes a field of a JSON file.
fn set(file: &Path, pointer: &str, value: Value) {
    let mut json: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    json.pointer_mut(parent).unwrap()[name] = value;
    fs::write(file, json.to_string()).unwrap();
}

/// Why a source cannot be built, without the names of folders.
fn refusal(source: &Path, folder: &Path) -> String {
    let runtime = runtime().unwrap();
    let error = build_request(&request(source.to_owned(), folder.join("out"), None), runtime).unwrap_err();
    assert!(!folder.join("out").exists(), "a bundle that was refused is not there");
    error.chain().replace(&folder.display().to_string(), "[folder]")
}

#[test]
fn numbers_that_would_fill_the_memory_are_refused() {
    if runtime().is_none() {
        return;
    }
    let number = |number: usize| json!(number);
    for (model, file, field, value, expected) in [
        (
            "tiny-bert",
            "config.json",
            "/max_position_embeddings",
            number(usize::MAX),
            "position_embeddings.weight` of shape",
        ),
        (
            "tiny-bert",
            "config.json",
            "/num_hidden_layers",
            number(usize::MAX),
            "expected the weight `encoder.layer.",
        ),
        ("tiny-bert", "config.json", "/hidden_size", number(0), "expected `hidden_size` to be a multiple of"),
        ("tiny-roberta", "config.json", "/pad_token_id", json!(i64::MAX), "expected "),
        (
            "tiny-marian",
            "config.json",
            "/max_position_embeddings",
            number(usize::MAX),
            "expected `max_position_embeddings` times",
        ),
        (
            "tiny-m2m100",
            "config.json",
            "/pad_token_id",
            json!(i64::MAX),
            "expected `max_position_embeddings` times",
        ),
        ("tiny-marian", "vocab.json", "/far", number(u32::MAX as usize), "expected ids below 2097152"),
        ("tiny-marian", "vocab.json", "/far", number(1_000_000), "expected ids below "),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let source = copied(&format!("models/{model}"), folder.path());
        set(&source.join(file), field, value);
        let refusal = refusal(&source, folder.path());
        assert!(refusal.contains(expected), "{model} {field}: {refusal}");
    }
}

#[test]
fn shards_and_weights_outside_of_the_folder_are_not_read() {
    if runtime().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = copied("models/tiny-bert-sharded", folder.path());
    set(&source.join("model.safetensors.index.json"), "/weight_map/x", json!("../outside.safetensors"));
    let refused = refusal(&source, folder.path());
    assert!(
        refused.contains("expected shards in the folder of their index, but found `../outside.safetensors`"),
        "{refused}"
    );

    let folder = tempfile::tempdir().unwrap();
    let source = copied("exports/tiny-bert", folder.path());
    change_graph(&source.join("model.onnx"), |model| {
        let tensor = &mut model.graph.as_mut().unwrap().initializer[0];
        tensor.raw_data.clear();
        tensor.data_location = onnx::proto::EXTERNAL;
        let entry = |key: &str, value: &str| onnx::proto::StringStringEntryProto {
            key: key.into(),
            value: value.into(),
        };
        tensor.external_data = vec![entry("location", "../../../etc/passwd")];
    });
    let refused = refusal(&source, folder.path());
    assert!(refused.contains("in the folder of the graph, but found `../../../etc/passwd`"), "{refused}");
}

fn change_graph(path: &Path, change: impl FnOnce(&mut ModelProto)) {
    let mut model = ModelProto::decode(fs::read(path).unwrap().as_slice()).unwrap();
    change(&mut model);
    fs::write(path, model.encode_to_vec()).unwrap();
}

#[test]
fn operators_of_nobody_and_graphs_that_go_in_circles_are_refused() {
    if runtime().is_none() {
        return;
    }
    for change in [
        |model: &mut ModelProto| model.graph.as_mut().unwrap().node[0].domain = "evil.example".into(),
        |model: &mut ModelProto| {
            let nodes = &mut model.graph.as_mut().unwrap().node;
            let last = nodes[nodes.len() - 1].output[0].clone();
            let first = nodes.iter_mut().find(|node| node.op_type == "Add").unwrap();
            first.input[0] = last;
        },
    ] {
        let folder = tempfile::tempdir().unwrap();
        let source = copied("exports/tiny-bert", folder.path());
        change_graph(&source.join("model.onnx"), change);
        // In the runtime's words, which differ from version to version.
        assert!(!refusal(&source, folder.path()).is_empty());
    }
}

/// Either was once taken at its word, while the graph was quantised: the sides of a matrix, whose product is right where
/// both are negative, and that a node has an output.
#[test]
fn matrices_of_negative_sides_and_nodes_without_outputs_are_refused() {
    if runtime().is_none() {
        return;
    }
    for (operator, change) in [
        ("MatMul", negative as fn(&mut ModelProto, usize)),
        ("Gather", negative),
        ("MatMul", |model, place| model.graph.as_mut().unwrap().node[place].output.clear()),
        ("Gather", |model, place| model.graph.as_mut().unwrap().node[place].output.clear()),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let source = copied("exports/tiny-bert", folder.path());
        change_graph(&source.join("model.onnx"), |model| {
            let graph = model.graph.as_ref().unwrap();
            let place = graph.node.iter().position(|node| {
                let is_constant =
                    |name: &String| graph.initializer.iter().any(|it| it.name == *name && it.dims.len() == 2);
                node.op_type == operator && node.input.iter().any(is_constant)
            });
            change(model, place.unwrap());
        });
        // In the runtime's words.
        assert!(!refusal(&source, folder.path()).is_empty());
    }
}

/// Makes both sides of the matrix that a node reads negative.
fn negative(model: &mut ModelProto, place: usize) {
    let graph = model.graph.as_mut().unwrap();
    let inputs = &graph.node[place].input;
    let matrix = graph.initializer.iter_mut().find(|it| inputs.contains(&it.name) && it.dims.len() == 2);
    matrix.unwrap().dims.iter_mut().for_each(|side| *side = -*side);
}

/// A bundle's graph that reads a file which its manifest does not name, changed with all hashes right.
#[test]
fn a_bundle_reads_no_file_that_its_manifest_does_not_name() {
    let Some((folder, bundle)) = bundle() else { return };
    let secret = folder.path().join("secret");
    fs::write(&secret, [1; 1 << 20]).unwrap();
    for location in ["../secret", "unnamed.bin", secret.to_str().unwrap()] {
        fs::copy(&secret, bundle.join("unnamed.bin")).unwrap();
        change_graph(&bundle.join("model.onnx"), |model| {
            let graph = model.graph.as_mut().unwrap();
            let outside = graph.initializer.iter_mut().find(|it| it.data_location == onnx::proto::EXTERNAL);
            let entries = &mut outside.unwrap().external_data;
            entries.iter_mut().find(|entry| entry.key == "location").unwrap().value = location.into();
        });
        let opened = Bundle::open(&bundle).unwrap();
        let mut manifest = opened.manifest().clone();
        for file in &mut manifest.files {
            *file = describe(&bundle.join(&file.name), file.name.clone()).unwrap();
        }
        fs::write(bundle.join("manifest.toml"), manifest.to_text().unwrap()).unwrap();
        let refused = serve(&bundle).unwrap_err();
        assert!(matches!(refused, Error::Model { .. }));
        let refused = refused.chain();
        assert!(refused.contains("in a file of the bundle, but found"), "{refused}");
    }
}

/// A disk that is full while a bundle or an output is written: told, and nothing half-written under the name.
#[test]
fn a_disk_that_fills_up_leaves_nothing_half_written() {
    let Some((folder, bundle)) = bundle() else { return };
    let disk = folder.path().join("disk");
    let rows = folder.path().join("rows.csv");
    fs::create_dir(&disk).unwrap();
    fs::write(&rows, format!("text\n{}", "the cat sat on the mat\n".repeat(2000))).unwrap();
    let kivu = env!("CARGO_BIN_EXE_kivu");
    let build = format!("build {} --out $DISK/bundle", fixtures().join("models/tiny-bert").display());
    let batch = format!("batch {} $DISK/out.csv --model {}", rows.display(), bundle.display());
    for (what, size) in [(build, "32k"), (batch, "32k")] {
        let script = format!(
            "mount -t tmpfs -o size={size} none $DISK || exit 77\n{kivu} {what} 2>&1; echo status $?; ls $DISK"
        );
        let output = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
            .env("DISK", &disk)
            .env("KIVU_ONNXRUNTIME", crate::models::library_path().unwrap())
            .output();
        let Some(output) = output.ok().filter(|output| output.status.success()) else {
            eprintln!("skipped: no disk of one's own can be made here (`unshare --user --mount`)");
            return;
        };
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains("No space left on device"), "{said}");
        let (_, left) = said.split_once("status 1\n").unwrap_or_else(|| panic!("{said}"));
        assert!(!left.lines().any(|name| name == "bundle" || name == "out.csv"), "{left}");
    }
}
