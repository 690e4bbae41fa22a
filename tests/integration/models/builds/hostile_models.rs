//! Malicious model files are refused with an error, without a panic, and without reading files outside their folder.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use kivu::{
    Error,
    repository::{Bundle, bundle::describe},
};
use kivu_compiler::{onnx, onnx::proto::ModelProto};
use prost::Message;
use serde_json::{Value, json};

use crate::{
    models::{build_request, fixtures, request, runtime, serve},
    server::bundle,
};

/// A modifiable fixture copy.
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

/// Changes a field in a JSON file.
fn set(file: &Path, pointer: &str, value: Value) {
    let mut json: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    json.pointer_mut(parent).unwrap()[name] = value;
    fs::write(file, json.to_string()).unwrap();
}

/// Error for building a source, without folder names.
fn refusal(source: &Path, folder: &Path) -> String {
    let runtime = runtime().unwrap();
    let error = build_request(
        &request(source.to_owned(), folder.join("out"), None),
        runtime,
    )
    .unwrap_err();
    assert!(
        !folder.join("out").exists(),
        "a refused bundle is not written"
    );
    error
        .chain()
        .replace(&folder.display().to_string(), "[folder]")
}

#[test]
fn sizes_beyond_memory_are_refused() {
    if runtime().is_none() {
        return;
    }
    let number = |number: usize| json!(number);
    for (model, file, field, value, expected) in [
        (
            "tiny-roberta",
            "config.json",
            "/pad_token_id",
            json!(i64::MAX),
            "expected ",
        ),
        (
            "tiny-m2m100",
            "config.json",
            "/pad_token_id",
            json!(i64::MAX),
            "expected `max_position_embeddings` times",
        ),
        (
            "tiny-marian",
            "vocab.json",
            "/far",
            number(u32::MAX as usize),
            "expected ids below 2097152",
        ),
        (
            "tiny-marian",
            "vocab.json",
            "/far",
            number(1_000_000),
            "expected ids below ",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let source = copied(&format!("models/{model}"), folder.path());
        set(&source.join(file), field, value);
        let refusal = refusal(&source, folder.path());
        assert!(refusal.contains(expected), "{model} {field}: {refusal}");
    }
}

/// Size fields in configs: most families, DistilBERT, NeoBERT, NomicBERT, Qwen3 and Gemma 3, T5's encoder, T5's decoder,
/// the families after fairseq.
const SIZES: [&[&str]; 8] = [
    &[
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "vocab_size",
    ],
    &[
        "dim",
        "hidden_dim",
        "max_position_embeddings",
        "n_heads",
        "n_layers",
        "vocab_size",
    ],
    &[
        "hidden_size",
        "intermediate_size",
        "max_length",
        "num_attention_heads",
        "num_hidden_layers",
        "vocab_size",
    ],
    &[
        "n_embd",
        "n_head",
        "n_inner",
        "n_layer",
        "n_positions",
        "vocab_size",
    ],
    &["head_dim", "num_key_value_heads"],
    &[
        "d_ff",
        "d_kv",
        "d_model",
        "num_heads",
        "num_layers",
        "vocab_size",
    ],
    &["num_decoder_layers"],
    &[
        "d_model",
        "decoder_attention_heads",
        "decoder_ffn_dim",
        "decoder_layers",
        "encoder_attention_heads",
        "encoder_ffn_dim",
        "encoder_layers",
        "max_position_embeddings",
        "vocab_size",
    ],
];

#[test]
fn absurd_sizes_are_refused_by_name_in_all_families() {
    if runtime().is_none() {
        return;
    }
    let [
        bert,
        distilbert,
        neobert,
        nomic,
        grouped,
        t5,
        t5_decoder,
        fairseq,
    ] = SIZES;
    let families: [(&str, &[&[&str]]); 38] = [
        ("tiny-bert", &[bert]),
        ("tiny-distilbert", &[distilbert]),
        ("tiny-roberta", &[bert]),
        ("tiny-xlm-roberta", &[bert]),
        ("tiny-camembert-ner", &[bert]),
        ("tiny-xlm-roberta-xl", &[bert]),
        ("tiny-roberta-prelayernorm", &[bert]),
        ("tiny-deberta-v2", &[bert, &["position_buckets"]]),
        ("tiny-mpnet", &[bert]),
        ("tiny-modernbert", &[bert, &["local_attention"]]),
        ("tiny-roformer", &[bert, &["embedding_size"]]),
        ("tiny-neobert", &[neobert]),
        (
            "tiny-mobilebert",
            &[
                bert,
                &[
                    "embedding_size",
                    "intra_bottleneck_size",
                    "num_feedforward_networks",
                ],
            ],
        ),
        ("tiny-nomic", &[nomic]),
        ("tiny-gte", &[bert]),
        ("tiny-jina", &[bert]),
        ("tiny-jina-code", &[bert]),
        ("tiny-qwen3", &[bert, grouped]),
        ("tiny-gemma3", &[bert, grouped, &["sliding_window"]]),
        ("tiny-llama", &[bert, &["num_key_value_heads"]]),
        (
            "tiny-mistral",
            &[bert, &["num_key_value_heads", "sliding_window"]],
        ),
        (
            "tiny-qwen2",
            &[bert, &["num_key_value_heads", "sliding_window"]],
        ),
        ("tiny-ministral3", &[bert, grouped]),
        (
            "tiny-lfm2",
            &[
                bert,
                &["block_multiple_of", "conv_L_cache", "num_key_value_heads"],
            ],
        ),
        ("tiny-gemma2", &[bert, grouped, &["sliding_window"]]),
        ("tiny-eurobert", &[bert, grouped]),
        ("tiny-jina-v5-small", &[bert, grouped]),
        (
            "tiny-privacy-filter",
            &[
                bert,
                grouped,
                &["num_experts_per_tok", "num_local_experts", "sliding_window"],
            ],
        ),
        (
            "tiny-ultrabert",
            &[bert, grouped, &["sliding_window", "prediction_head_size"]],
        ),
        (
            "tiny-embedding-gemma2-text",
            &[
                bert,
                grouped,
                &[
                    "sliding_window",
                    "embedding_dim",
                    "hidden_size_per_layer_input",
                ],
            ],
        ),
        ("tiny-sentence-t5", &[t5]),
        ("tiny-t5", &[t5, t5_decoder]),
        ("tiny-mt5", &[t5, t5_decoder]),
        ("tiny-marian", &[fairseq, &["decoder_vocab_size"]]),
        ("tiny-m2m100", &[fairseq]),
        ("tiny-bart", &[fairseq]),
        ("tiny-mbart", &[fairseq]),
        ("tiny-pegasus", &[fairseq]),
    ];
    // Zero means no limit or no buckets; other error messages name the minimum window.
    let may_be_zero = ["position_buckets", "local_attention", "sliding_window"];
    for (model, fields) in families {
        let folder = tempfile::tempdir().unwrap();
        let source = copied(&format!("models/{model}"), folder.path());
        let config = source.join("config.json");
        let original = fs::read(&config).unwrap();
        for field in fields.concat() {
            let values = [0_u64, 1 << 40];
            for value in values
                .into_iter()
                .filter(|value| *value > 0 || !may_be_zero.contains(&field))
            {
                set(&config, &format!("/{field}"), json!(value));
                let refusal = refusal(&source, folder.path());
                let expected = format!("expected `{field}` from 1 to 2097152, but found {value}");
                assert!(refusal.contains(&expected), "{model}: {refusal}");
                fs::write(&config, &original).unwrap();
            }
        }
    }
}

#[test]
fn shards_and_weights_outside_of_the_folder_are_not_read() {
    if runtime().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = copied("models/tiny-bert-sharded", folder.path());
    set(
        &source.join("model.safetensors.index.json"),
        "/weight_map/x",
        json!("../outside.safetensors"),
    );
    let refused = refusal(&source, folder.path());
    assert!(
        refused.contains(
            "expected shards in the folder of their index, but found `../outside.safetensors`"
        ),
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
    assert!(
        refused.contains("in the folder of the graph, but found `../../../etc/passwd`"),
        "{refused}"
    );
}

fn change_graph(path: &Path, change: impl FnOnce(&mut ModelProto)) {
    let mut model = ModelProto::decode(fs::read(path).unwrap().as_slice()).unwrap();
    change(&mut model);
    fs::write(path, model.encode_to_vec()).unwrap();
}

#[test]
fn unknown_operators_and_cyclic_graphs_are_refused() {
    if runtime().is_none() {
        return;
    }
    for change in [
        |model: &mut ModelProto| {
            model.graph.as_mut().unwrap().node[0].domain = "evil.example".into()
        },
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
        // The message is ONNX Runtime's, and depends on its version.
        assert!(!refusal(&source, folder.path()).is_empty());
    }
}

/// Regressions in quantization: a matrix whose sides are both negative has the right size, and a node may have no
/// output.
#[test]
fn negative_shapes_and_nodes_without_outputs_are_refused() {
    if runtime().is_none() {
        return;
    }
    for (operator, change) in [
        ("MatMul", negative as fn(&mut ModelProto, usize)),
        ("Gather", negative),
        ("MatMul", |model, place| {
            model.graph.as_mut().unwrap().node[place].output.clear()
        }),
        ("Gather", |model, place| {
            model.graph.as_mut().unwrap().node[place].output.clear()
        }),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let source = copied("exports/tiny-bert", folder.path());
        change_graph(&source.join("model.onnx"), |model| {
            let graph = model.graph.as_ref().unwrap();
            let place = graph.node.iter().position(|node| {
                let is_constant = |name: &String| {
                    graph
                        .initializer
                        .iter()
                        .any(|it| it.name == *name && it.dims.len() == 2)
                };
                node.op_type == operator && node.input.iter().any(is_constant)
            });
            change(model, place.unwrap());
        });
        // The message is ONNX Runtime's.
        assert!(!refusal(&source, folder.path()).is_empty());
    }
}

/// Negates both sides of the matrix that is a node's input.
fn negative(model: &mut ModelProto, place: usize) {
    let graph = model.graph.as_mut().unwrap();
    let inputs = &graph.node[place].input;
    let matrix = graph
        .initializer
        .iter_mut()
        .find(|it| inputs.contains(&it.name) && it.dims.len() == 2);
    matrix
        .unwrap()
        .dims
        .iter_mut()
        .for_each(|side| *side = -*side);
}

/// A bundle's graph refers to a file outside the manifest, and all hashes are right.
#[test]
fn files_outside_the_manifest_are_not_read() {
    let Some((folder, bundle)) = bundle() else {
        return;
    };
    let secret = folder.path().join("secret");
    fs::write(&secret, [1; 1 << 20]).unwrap();
    for location in ["../secret", "unnamed.bin", secret.to_str().unwrap()] {
        fs::copy(&secret, bundle.join("unnamed.bin")).unwrap();
        change_graph(&bundle.join("model.onnx"), |model| {
            let graph = model.graph.as_mut().unwrap();
            let outside = graph
                .initializer
                .iter_mut()
                .find(|it| it.data_location == onnx::proto::EXTERNAL);
            let entries = &mut outside.unwrap().external_data;
            entries
                .iter_mut()
                .find(|entry| entry.key == "location")
                .unwrap()
                .value = location.into();
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
        assert!(
            refused.contains("in a file of the bundle, but found"),
            "{refused}"
        );
    }
}

/// Builds and batch jobs report a full disk, and leave no partial file under the final name.
#[test]
fn a_full_disk_leaves_no_partial_files() {
    let Some((folder, bundle)) = bundle() else {
        return;
    };
    let disk = folder.path().join("disk");
    let rows = folder.path().join("rows.csv");
    fs::create_dir(&disk).unwrap();
    fs::write(
        &rows,
        format!("text\n{}", "the cat sat on the mat\n".repeat(2000)),
    )
    .unwrap();
    let kivu = env!("CARGO_BIN_EXE_kivu");
    let build = format!(
        "build {} --out $DISK/bundle",
        fixtures().join("models/tiny-bert").display()
    );
    let batch = format!(
        "batch {} $DISK/out.csv --model {}",
        rows.display(),
        bundle.display()
    );
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
            crate::skips::unsupported("cannot mount a file system here (`unshare --user --mount`)");
            return;
        };
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains("No space left on device"), "{said}");
        let (_, left) = said
            .split_once("status 1\n")
            .unwrap_or_else(|| panic!("{said}"));
        assert!(
            !left
                .lines()
                .any(|name| name == "bundle" || name == "out.csv"),
            "{left}"
        );
    }
}
