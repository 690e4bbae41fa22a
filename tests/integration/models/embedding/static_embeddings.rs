//! Static embeddings: vectors equal to sentence-transformers', without a runtime library, and the same
//! from ONNX Runtime.

use std::{fs, path::Path};

use kivu::{
    backend::{
        Engine,
        encoder::EncoderBackend,
        native::{TableBackend, TableModel, WeightFiles},
        routing::Location,
    },
    config::EngineChoice,
    pipeline::embedding::similarity::cosine,
    repository::{Bundle, manifest::Precision},
    tokenizer::Encoding,
};
use serde::Deserialize;

use crate::{
    copies::copy,
    embedding::goldens::{deadline, difference, pipeline, text},
    engines::encoders::{encoder_keeps_its_contract, encoding, run},
    models::{build_request, fixtures, options, request, runtime, serve, serve_in},
};

const TOLERANCE: f32 = 2e-6;

#[derive(Deserialize)]
struct Case {
    model: String,
    text: String,
    embedding: Vec<f32>,
}

fn goldens() -> Vec<Case> {
    serde_json::from_slice(&fs::read(fixtures().join("goldens/static.json")).unwrap()).unwrap()
}

fn build(name: &str, folder: &Path, precision: Precision) -> Option<Bundle> {
    let out = folder.join(format!("{name}-{precision}"));
    let request = request(fixtures().join("models").join(name), out, Some(precision));
    Some(build_request(&request, runtime()?).unwrap())
}

fn table(bundle: &Bundle) -> TableModel {
    let graph = bundle.read(&bundle.manifest().graph).unwrap();
    assert!(TableModel::is_in(&graph).unwrap());
    let names = WeightFiles::names(&graph).unwrap().into_iter();
    let files = WeightFiles::map(names.map(|name| (name.clone(), bundle.path(&name))), None);
    TableModel::open(&graph, files.unwrap()).unwrap()
}

#[tokio::test]
async fn vectors_are_those_of_sentence_transformers_in_both_engines() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["tiny-static", "tiny-model2vec"] {
        for precision in [Precision::Fp32, Precision::Int8] {
            let Some(bundle) = build(name, folder.path(), precision) else {
                return;
            };
            assert_eq!(bundle.manifest().engine, Engine::Native);
            let open = |engine| serve_in(&bundle.path(""), engine).unwrap();
            let [native, onnx] = [EngineChoice::Auto, EngineChoice::Onnx].map(open);
            assert_eq!(native.arithmetic, Some(format!("{precision} (table)")));
            for case in goldens().iter().filter(|case| case.model == name) {
                let embed = async |model| {
                    pipeline(model)
                        .embed(text(&case.text), &options(), deadline())
                        .await
                };
                let [found, other] = [embed(&native).await.unwrap(), embed(&onnx).await.unwrap()];
                assert_eq!(found.usage.location, Location::Local(Engine::Native));
                let [found, other] = [&found.vectors[0], &other.vectors[0]];
                assert!(
                    difference(found, other) < TOLERANCE,
                    "{name}, {precision}: {:?}",
                    case.text
                );
                if precision == Precision::Fp32 {
                    let difference = difference(found, &case.embedding);
                    assert!(
                        difference < TOLERANCE,
                        "{name}: {:?}: off by {difference}",
                        case.text
                    );
                } else if case.embedding.iter().any(|value| *value != 0.0) {
                    assert!(
                        cosine(found, &case.embedding) > 0.999,
                        "{name}: {:?}",
                        case.text
                    );
                }
            }
        }
    }
}

#[tokio::test]
async fn tables_keep_the_contract_of_backends() {
    let folder = tempfile::tempdir().unwrap();
    let Some(bundle) = build("tiny-static", folder.path(), Precision::Int8) else {
        return;
    };
    let backend = TableBackend::new(table(&bundle), std::num::NonZeroUsize::MIN);
    let signature = backend.signature().clone();
    assert_eq!(&signature, &bundle.manifest().signature);
    let infer = async |ids: &[u32], unattended| {
        let text = Encoding {
            unattended,
            ..encoding(ids.to_vec())
        };
        Ok::<_, kivu::Error>(run(&backend, &[text], deadline()).await?.remove(0).0)
    };
    // Tokens that do not count have no weight; without others, the vector is zero.
    assert_eq!(
        infer(&[7, 9, 3, 3], 2).await.unwrap(),
        infer(&[7, 9], 0).await.unwrap()
    );
    assert_eq!(infer(&[3, 3], 2).await.unwrap(), [0.0; 20]);
    assert_eq!(infer(&[], 0).await.unwrap(), [0.0; 20]);
    let error = infer(&[7, 1 << 30], 0).await.unwrap_err().to_string();
    assert!(
        error.starts_with("expected token ids from 0 to ") && error.ends_with("found 1073741824"),
        "{error}"
    );
    encoder_keeps_its_contract(&backend).await;
}

#[test]
fn unusable_tables_are_refused() {
    let Some(runtime) = runtime() else { return };
    let refusal = |name: &str, spoil: &dyn Fn(&Path)| {
        let folder = tempfile::tempdir().unwrap();
        let from = folder.path().join("model");
        copy(&fixtures().join("models").join(name), &from);
        spoil(&from);
        let request = request(from, folder.path().join("out"), Some(Precision::Fp32));
        let error = build_request(&request, runtime).unwrap_err();
        error
            .chain()
            .replace(&folder.path().display().to_string(), "[folder]")
    };
    let refusals = [
        refusal("tiny-static", &|model| {
            let other = fixtures().join("models/tiny-bert/model.safetensors");
            fs::copy(other, model.join("model.safetensors")).unwrap();
        }),
        refusal("tiny-static", &|model| {
            let other = fixtures().join("models/tiny-xlm-roberta/tokenizer.json");
            fs::copy(other, model.join("tokenizer.json")).unwrap();
        }),
        refusal("tiny-static", &|model| {
            fs::remove_file(model.join("tokenizer.json")).unwrap()
        }),
        refusal("tiny-static", &|model| {
            let weights = model.join("model.safetensors");
            fs::rename(weights, model.join("pytorch_model.bin")).unwrap();
        }),
        refusal("tiny-model2vec", &|model| {
            // Half-precision rows: the mapping's last integer is outside the table.
            let path = model.join("model.safetensors");
            let mut bytes = fs::read(&path).unwrap();
            let header = String::from_utf8_lossy(&bytes).into_owned();
            let place = header.find("\"mapping\"").unwrap();
            let offsets = header[place..].split_once("\"data_offsets\":[").unwrap().1;
            let end: usize = offsets.split([',', ']']).nth(1).unwrap().parse().unwrap();
            let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            bytes[start + end - 8..start + end].copy_from_slice(&1000_i64.to_le_bytes());
            fs::write(&path, bytes).unwrap();
        }),
        refusal("tiny-model2vec", &|model| {
            // One row for all tokens.
            let header = r#"{"embeddings":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},
                "mapping":{"dtype":"I64","shape":[282],"data_offsets":[4,2260]}}"#;
            let length = (header.len() as u64).to_le_bytes();
            let bytes = [&length, header.as_bytes(), &[0; 2260]].concat();
            fs::write(model.join("model.safetensors"), bytes).unwrap();
        }),
    ];
    insta::assert_snapshot!(refusals.join("\n"), @r"
    expected `embedding.weight` or `embeddings` as a matrix of floats, but found neither
    expected a row for each of the tokenizer's 282 tokens, but found 230 rows
    expected `tokenizer.json` in `[folder]/model`, but found none; with `transformers`, `AutoTokenizer.from_pretrained('[folder]/model').save_pretrained('[folder]/model')` writes it
    cannot read `[folder]/model/pytorch_model.bin`; convert it to safetensors with `save_pretrained`: expected a PyTorch checkpoint: invalid Zip archive: Could not find EOCD
    expected `mapping` to rows below 76, but found 1000
    expected at most 64 tokens for each row of the table on average, but found 282 in `mapping` for 1 rows
    ");
}

/// A model whose module list names its table's folder, and more modules after it.
#[tokio::test]
async fn tables_in_a_folder_of_their_own_and_with_modules() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("model");
    copy(
        &fixtures().join("models/tiny-static"),
        &from.join("0_StaticEmbedding"),
    );
    let modules = |more: &str| {
        let list = format!(
            r#"[{{"path": "0_StaticEmbedding", "type": "sentence_transformers.models.StaticEmbedding"}}{more}]"#
        );
        fs::write(from.join("modules.json"), list).unwrap();
    };
    modules(r#", {"path": "1_Normalize", "type": "sentence_transformers.models.Normalize"}"#);
    let built = build_request(
        &request(from.clone(), folder.path().join("a"), None),
        runtime,
    )
    .unwrap();
    let settings = built.manifest().settings.embedding().unwrap();
    assert!(settings.dense().unwrap().normalize && built.manifest().engine == Engine::Native);
    let model = serve(&built.path("")).unwrap();
    let found = pipeline(&model)
        .embed(text("The cat sits on the mat."), &options(), deadline())
        .await
        .unwrap();
    assert!((cosine(&found.vectors[0], &found.vectors[0]) - 1.0).abs() < 1e-5);

    copy(
        &fixtures().join("modules/of-tokens/4_Dense"),
        &from.join("1_Dense"),
    );
    modules(r#", {"path": "1_Dense", "type": "sentence_transformers.models.Dense"}"#);
    let built = build_request(
        &request(from.clone(), folder.path().join("b"), None),
        runtime,
    )
    .unwrap();
    let settings = built.manifest().settings.embedding().unwrap();
    assert_eq!(
        (
            settings.dense().unwrap().dimensions,
            built.manifest().engine
        ),
        (12, Engine::Onnx)
    );
}
