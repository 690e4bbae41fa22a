//! The native engine: the backend contract, ONNX Runtime's results, and the same bits whatever else is in the run.

use std::{
    collections::BTreeMap,
    fs,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    slice,
    time::Duration,
};

use kivu::{
    backend::{
        Deadline, Engine,
        encoder::{EncoderBackend, Sequence},
        native::{NativeBackend, NativeModel, WeightFiles},
        tensors::TensorEncoder,
    },
    config::EngineChoice,
    onnx_proto::{GraphProto, ModelProto},
    pipeline::{Task, embedding::similarity::cosine},
    repository::{Bundle, manifest::Precision},
    tokenizer::Encoding,
};
use kivu_compiler::Request;

use prost::Message;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use crate::{
    engines::encoders::{FirstOutput, encoder_keeps_its_contract, encoding, run},
    models::{build_request, fixtures, request_without_floor, runtime, serve_in},
};

/// A fixture in int8, or in blocks if its name is followed by [`IN_BLOCKS`].
fn build(name: &str, folder: &Path) -> Option<Bundle> {
    build_request(&recipe(name, folder), runtime()?)
        .map(Some)
        .unwrap()
}

pub(crate) fn recipe(name: &str, folder: &Path) -> Request {
    let (name, precision) = match name.strip_suffix(IN_BLOCKS) {
        Some(name) => (name, Precision::Int8Blocks),
        None => (name, Precision::Int8),
    };
    let task = match name {
        name if name.ends_with("-rank") || name.contains("-reranker") => Task::TextRanking,
        name if name.ends_with("-cls") => Task::TextClassification,
        name if name.ends_with("-nli") || name == "tiny-deberta-v2" => Task::TextClassification,
        name if ["-ner", "-filter"].iter().any(|end| name.ends_with(end))
            || name.starts_with("tiny-gliner") =>
        {
            Task::TokenClassification
        }
        name if name.starts_with("tiny-gliclass") => Task::ZeroShotClassification,
        _ => Task::FeatureExtraction,
    };
    let source = fixtures().join("models").join(name);
    request_without_floor(task, &source, folder.join(name), Some(precision))
}

const IN_BLOCKS: &str = " in blocks";

fn model(bundle: &Bundle) -> NativeModel {
    let graph = bundle.read(&bundle.manifest().graph).unwrap();
    open(&graph, bundle).unwrap()
}

/// A graph with the weights in `bundle`.
fn open(graph: &[u8], bundle: &Bundle) -> kivu::error::Result<NativeModel> {
    let names = WeightFiles::names(graph)?.into_iter();
    let files = WeightFiles::map(names.map(|name| (name.clone(), bundle.path(&name))), None);
    NativeModel::open(graph, files?)
}

fn backend(bundle: &Bundle, threads: usize) -> NativeBackend {
    NativeBackend::start(model(bundle), NonZeroUsize::new(threads).unwrap()).unwrap()
}

fn deadline() -> Deadline {
    Deadline::within(Duration::from_secs(30))
}

/// A text with this many tokens; texts with different numbers have different tokens.
fn text(number: usize, length: usize) -> Encoding {
    let id = |place: usize| 5 + ((number * 31 + place * 7) % 40) as u32;
    Encoding {
        task: (number as u32 + 2) % 5,
        ..encoding((0..length).map(id).collect())
    }
}

async fn run_one(encoder: &dyn EncoderBackend, text: &Encoding) -> FirstOutput {
    let found = run(encoder, slice::from_ref(text), deadline()).await;
    found.unwrap().remove(0)
}

/// Fixtures for every family and task that the engine supports.
const MODELS: [&str; 8] = [
    "tiny-bert",
    "tiny-distilbert",
    "tiny-roberta",
    "tiny-xlm-roberta",
    "tiny-bert-rank",
    "tiny-roberta-nli",
    "tiny-bert-ner",
    "tiny-roberta-ner",
];

/// Fixtures for families in which positions affect attention, or feed-forward layers are gated.
const OTHER_MODELS: [&str; 17] = [
    "tiny-mpnet",
    "tiny-nomic",
    "tiny-nomic-moe",
    "tiny-nomic-moe in blocks",
    "tiny-gte",
    "tiny-gte-types",
    "tiny-jina",
    "tiny-jina-code",
    "tiny-jina-v3",
    "tiny-jina-v3-hf",
    "tiny-neobert",
    "tiny-neobert-cls",
    "tiny-modernbert",
    "tiny-modernbert-cls",
    "tiny-modernbert-rank",
    "tiny-mpnet-ner",
    "tiny-modernbert-ner",
];

/// Fixtures for BERT's successors: with narrow embeddings, shared layers, task types, other
/// names, or a decoder.
const SUCCESSORS: [&str; 30] = [
    "tiny-electra",
    "tiny-electra-rank",
    "tiny-electra-ner",
    "tiny-albert",
    "tiny-albert-cls",
    "tiny-albert-ner",
    "tiny-ernie",
    "tiny-ernie-cls",
    "tiny-data2vec",
    "tiny-roformer",
    "tiny-roformer-cls",
    "tiny-roformer-ner",
    "tiny-roformer in blocks",
    "tiny-megatron",
    "tiny-mobilebert",
    "tiny-mobilebert-cls",
    "tiny-mobilebert-ner",
    "tiny-mobilebert in blocks",
    "tiny-megatron-cls",
    "tiny-xlm-roberta-xl",
    "tiny-xlm-roberta-xl-cls",
    "tiny-xlm-roberta-xl-ner",
    "tiny-roberta-prelayernorm",
    "tiny-roberta-prelayernorm-cls",
    "tiny-roberta-prelayernorm-ner",
    "tiny-bart-nli",
    "tiny-bart-nli in blocks",
    "tiny-electra in blocks",
    "tiny-xlm-roberta-xl in blocks",
    "tiny-albert-cls in blocks",
];

/// Fixtures for RMSNorm families, most with layers after their pooling, and for block quantization.
const RMS_MODELS: [&str; 7] = [
    "tiny-qwen3",
    "tiny-qwen3-rank",
    "tiny-gemma3",
    "tiny-sentence-t5",
    "tiny-bert in blocks",
    "tiny-gemma3 in blocks",
    "tiny-splade-bert in blocks",
];

/// Fixtures for decoder families, with windows, limited scores, scaled rotary positions and heads.
const DECODERS: [&str; 31] = [
    "tiny-llama",
    "tiny-mistral",
    "tiny-qwen2",
    "tiny-gemma2",
    "tiny-eurobert",
    "tiny-eurobert-cls",
    "tiny-jina-v5-nano",
    "tiny-jina-v5-small",
    "tiny-ultrabert",
    "tiny-ultrabert-cls",
    "tiny-ultrabert-ner",
    "tiny-ultrabert in blocks",
    "tiny-embedding-gemma2",
    "tiny-embedding-gemma2-text",
    "tiny-embedding-gemma2-text in blocks",
    "tiny-llama-cls",
    "tiny-gemma-rank",
    "tiny-ministral3",
    "tiny-ministral3-rank",
    "tiny-lfm2",
    "tiny-lfm2-encoder",
    "tiny-pplx",
    "tiny-voyage",
    "tiny-jina-reranker-v3",
    "tiny-ministral3 in blocks",
    "tiny-lfm2 in blocks",
    "tiny-privacy-filter",
    "tiny-privacy-filter in blocks",
    "tiny-llama in blocks",
    "tiny-qwen2 in blocks",
    "tiny-gemma2 in blocks",
];

/// The same for DeBERTa: all versions and heads, with a convolution, and weights in blocks.
const DEBERTAS: [&str; 8] = [
    "tiny-deberta",
    "tiny-deberta-cls",
    "tiny-deberta-cls in blocks",
    "tiny-deberta-nli",
    "tiny-deberta-v2",
    "tiny-deberta-ner",
    "tiny-deberta-nli in blocks",
    "tiny-deberta-v2 in blocks",
];

#[tokio::test]
async fn the_native_backend_keeps_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["tiny-bert", "tiny-roberta"] {
        let Some(bundle) = build(name, folder.path()) else {
            return;
        };
        assert_eq!(bundle.manifest().engine, Engine::Native);
        encoder_keeps_its_contract(&backend(&bundle, 2)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_results_are_those_of_onnx_runtime_on_the_same_file() {
    have_the_same_results(MODELS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_families_have_the_same_results_too() {
    have_the_same_results(OTHER_MODELS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn successors_of_bert_have_the_same_results_too() {
    have_the_same_results(SUCCESSORS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deberta_has_the_same_results_too() {
    have_the_same_results(DEBERTAS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn decoders_and_t5_have_the_same_results_too() {
    have_the_same_results(RMS_MODELS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn llama_and_its_successors_have_the_same_results_too() {
    have_the_same_results(DECODERS).await;
}

/// Compares each model with ONNX Runtime, in which rounding differs, so that a value may be rounded to another integer,
/// which changes the next layer; and with itself, whatever else is in the run.
async fn have_the_same_results<const COUNT: usize>(models: [&str; COUNT]) {
    let folder = tempfile::tempdir().unwrap();
    for name in models {
        let Some(bundle) = build(name, folder.path()) else {
            return;
        };
        is_equal_in_onnx_runtime(name, &bundle).await;
        is_equal_in_fp32(|folder| recipe(name, folder), folder.path()).await;
        has_the_same_bits(name, &bundle).await;
    }
}

/// Both engines have the same results in fp32, each from the graph that is written for it. Returns the sizes of the graphs' weights.
async fn is_equal_in_fp32(recipe: impl Fn(&Path) -> Request, folder: &Path) -> [u64; 2] {
    let [native, onnx] = [EngineChoice::Auto, EngineChoice::Onnx].map(|engine| {
        let folder = folder.join(format!("fp32-{engine:?}"));
        fs::create_dir_all(&folder).unwrap();
        let mut request = recipe(&folder);
        request.precision = Some(Precision::Fp32);
        request.engine = engine;
        build_request(&request, runtime().unwrap()).unwrap()
    });
    let sizes = [&native, &onnx].map(|it| fs::metadata(it.path("weights.bin")).unwrap().len());
    let name = &native.manifest().name;
    is_equal_in_onnx_runtime(name, &native).await;
    let onnx = TensorEncoder::shared(crate::models::backend(&onnx, runtime().unwrap())).unwrap();
    let native = backend(&native, 2);
    let texts = [1, 13, 60].map(|length| text(0, length));
    let together = run(&native, &texts, deadline()).await.unwrap();
    for (text, together) in texts.iter().zip(together) {
        let (found, length) = (run_one(&native, text).await, text.ids.len());
        assert!(found == together, "{name}: alone");
        let ((found, _), (expected, _)) = (found, run_one(&*onnx, text).await);
        let largest = expected
            .iter()
            .fold(1.0_f32, |most, value| most.max(value.abs()));
        for (found, expected) in found.iter().zip(&expected) {
            let difference = (found - expected).abs() / largest;
            assert!(difference < 2e-5, "{name}, {length} tokens: {difference}");
        }
    }
    sizes
}

/// Weights of which 16 bits are not zero take 16 bits in fp32, too.
#[tokio::test]
async fn weights_in_16_bits_are_kept_in_16_bits() {
    if runtime().is_none() {
        return;
    }
    let bf16 = |bits: u32| (bits >> 16) as u16;
    // Numbers that are subnormal in fp16 become zero.
    let f16 = |bits: u32| {
        bf16(bits) & 0x8000 | ((bits & 0x7fff_ffff) >> 13).saturating_sub(112 << 10) as u16
    };
    for (dtype, shorten) in [
        (Dtype::BF16, &bf16 as &dyn Fn(u32) -> u16),
        (Dtype::F16, &f16),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let source = wider_bert(folder.path());
        let path = source.join("model.safetensors");
        let file = fs::read(&path).unwrap();
        let tensors = SafeTensors::deserialize(&file).unwrap();
        let tensors = tensors.iter().map(|(name, tensor)| {
            let numbers = tensor.data().as_chunks().0.iter();
            let numbers =
                numbers.flat_map(|bytes| shorten(u32::from_le_bytes(*bytes)).to_le_bytes());
            (
                name.to_owned(),
                tensor.shape().to_vec(),
                numbers.collect::<Vec<u8>>(),
            )
        });
        write(&path, dtype, &tensors.collect::<Vec<_>>());
        let recipe = |folder: &Path| {
            request_without_floor(
                Task::FeatureExtraction,
                &source,
                folder.join("wider-bert"),
                None,
            )
        };
        let [native, onnx] = is_equal_in_fp32(recipe, folder.path()).await;
        assert!(
            native < onnx * 11 / 20,
            "{dtype:?}: {native} of {onnx} bytes"
        );
    }
}

/// Writes tensors of one type: their names, shapes and bytes.
fn write(path: &Path, dtype: Dtype, tensors: &[(String, Vec<usize>, Vec<u8>)]) {
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (
            name.clone(),
            TensorView::new(dtype, shape.clone(), bytes).unwrap(),
        )
    });
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

async fn is_equal_in_onnx_runtime(name: &str, bundle: &Bundle) {
    let onnx = TensorEncoder::shared(crate::models::backend(bundle, runtime().unwrap())).unwrap();
    assert_eq!(bundle.manifest().engine, Engine::Native, "{name}");
    let native = backend(bundle, 1);
    assert_eq!(native.signature(), onnx.signature());
    for length in [1, 2, 7, 13, 33, 60] {
        let text = text(0, length);
        let (found, columns) = run_one(&native, &text).await;
        let (expected, others) = run_one(&*onnx, &text).await;
        assert_eq!((found.len(), columns), (expected.len(), others), "{name}");
        let similarity = cosine(&found, &expected);
        assert!(similarity > 0.998, "{name}, {length} tokens: {similarity}");
    }
}

/// A text has the same bits alone, on any number of threads, and in runs with others.
async fn has_the_same_bits(name: &str, bundle: &Bundle) {
    let lengths = [3, 60, 1, 12, 33, 49, 2, 48];
    let [one, many] = [1, 4].map(|threads| backend(bundle, threads));
    let texts = lengths.iter().enumerate();
    let texts: Vec<Encoding> = texts
        .map(|(number, length)| text(number, *length))
        .collect();
    let expected = run(&one, &texts, deadline()).await.unwrap();
    for (text, expected) in texts.iter().zip(&expected) {
        assert!(&run_one(&one, text).await == expected, "{name}: alone");
        assert!(
            &run_one(&many, text).await == expected,
            "{name}: several threads"
        );
    }
    // Concurrent calls share runs.
    let calls = (0..20)
        .flat_map(|_| &texts)
        .map(|text| run_one(&many, text));
    for (index, output) in futures::future::join_all(calls)
        .await
        .into_iter()
        .enumerate()
    {
        assert!(
            output == expected[index % expected.len()],
            "{name}: concurrently"
        );
    }
}

/// A text after a number of labels, with the number of the word that begins at each token.
fn text_with_words(length: usize, labels: usize, [first, marker]: [u32; 2]) -> Encoding {
    let id = |place: usize| match place {
        0 => first,
        _ if place % 2 == 1 && place < 2 * labels => marker,
        _ => 5 + (place * 7) as u32 % 40,
    };
    let mut words = 0;
    let word = |place: usize| match place >= 10 && place % 3 != 1 {
        true => {
            words += 1;
            words
        }
        false => 0,
    };
    Encoding {
        type_ids: (0..length).map(word).collect(),
        ..encoding((0..length).map(id).collect())
    }
}

/// GLiNER's, GLiNER2's and GLiClass's heads are in fp32 in both engines; a text's scores do not depend on others.
#[tokio::test(flavor = "multi_thread")]
async fn span_scores_are_those_of_onnx_runtime() {
    let folder = tempfile::tempdir().unwrap();
    let names = [
        "tiny-gliner",
        "tiny-gliner-deep",
        "tiny-gliner in blocks",
        "tiny-gliner-deberta",
        "tiny-gliner-words",
        "tiny-gliner-plain-words in blocks",
        "tiny-gliclass",
        "tiny-gliclass-mean in blocks",
        "tiny-gliclass-weighted",
        "tiny-gliclass-mlp",
        "tiny-gliner2",
        "tiny-gliner2-lstm in blocks",
        "tiny-gliner2-moe",
    ];
    for name in names {
        let Some(bundle) = build(name, folder.path()) else {
            return;
        };
        assert_eq!(bundle.manifest().engine, Engine::Native);
        let onnx = crate::models::backend(&bundle, runtime().unwrap());
        let onnx = TensorEncoder::shared(onnx).unwrap();
        let native = backend(&bundle, 2);
        assert_eq!(native.signature(), onnx.signature());
        let tokenizer = bundle.tokenizer().unwrap();
        let marker = ["<<ENT>>", "<<LABEL>>", "[E]"]
            .iter()
            .find_map(|token| tokenizer.id(token))
            .unwrap();
        let first = tokenizer.id("[P]").unwrap_or(5);
        let texts = [(40, 2), (21, 3)]
            .map(|(length, labels)| text_with_words(length, labels, [first, marker]));
        let together = run(&native, &texts, deadline()).await.unwrap();
        for (text, together) in texts.iter().zip(together) {
            let (found, labels) = run_one(&native, text).await;
            let (expected, others) = run_one(&*onnx, text).await;
            assert_eq!((found.len(), labels), (expected.len(), others), "{name}");
            assert!(
                (&found, labels) == (&together.0, together.1),
                "{name}: together"
            );
            let words = *text.type_ids.iter().max().unwrap() as usize;
            let longest = found.len() / (words * labels);
            let (mut own, mut others) = (Vec::new(), Vec::new());
            for word in 0..words {
                let part = word * labels * longest..(word + 1) * labels * longest;
                // The scores of spans that end after the text have no meaning.
                let scores = if name.contains("words") {
                    longest
                } else {
                    longest.min(words - word)
                };
                for length in 0..scores {
                    own.extend(found[part.clone()].iter().skip(length).step_by(longest));
                    others.extend(expected[part.clone()].iter().skip(length).step_by(longest));
                }
            }
            let similarity = cosine(&own, &others);
            assert!(similarity > 0.998, "{name}, {words} words: {similarity}");
        }
    }
}

/// The fixture `tiny-bert` with vectors four times as wide and other weights: fixtures are too small to be fitted.
fn wider_bert(folder: &Path) -> PathBuf {
    let source = fixtures().join("models/tiny-bert");
    let model = folder.join("wider-bert");
    fs::create_dir(&model).unwrap();
    for entry in fs::read_dir(&source)
        .unwrap()
        .map(Result::unwrap)
        .filter(|entry| entry.path().is_file())
    {
        fs::copy(entry.path(), model.join(entry.file_name())).unwrap();
    }
    fs::create_dir(model.join("1_Pooling")).unwrap();
    for file in ["config.json", "1_Pooling/config.json"] {
        let config = fs::read_to_string(source.join(file)).unwrap();
        let config = config
            .replace("\"hidden_size\": 32", "\"hidden_size\": 128")
            .replace("\"intermediate_size\": 64", "\"intermediate_size\": 256")
            .replace(
                "\"word_embedding_dimension\": 32",
                "\"word_embedding_dimension\": 128",
            );
        fs::write(model.join(file), config).unwrap();
    }
    let file = fs::read(source.join("model.safetensors")).unwrap();
    let mut random = fastrand::Rng::with_seed(3);
    let tensors = SafeTensors::deserialize(&file).unwrap();
    // By name: the file's own order changes from run to run, and the numbers with it.
    let tensors: BTreeMap<_, _> = tensors.iter().collect();
    let tensors = tensors.into_iter().map(|(name, tensor)| {
        let is_table = name.contains("embeddings.") && tensor.shape().len() == 2;
        let wider = |(axis, side): (usize, &usize)| {
            if is_table && axis == 0 {
                *side
            } else {
                4 * side
            }
        };
        let shape: Vec<usize> = tensor.shape().iter().enumerate().map(wider).collect();
        let center = if name.ends_with("LayerNorm.weight") {
            1.0
        } else {
            0.0
        };
        // Few large numbers, as in trained weights: with more, small quads need scales so large that fitting does not pay.
        let mut number =
            || center + ((0..4).map(|_| random.f32()).sum::<f32>() - 2.0).powi(3) * 0.15;
        let numbers = (0..shape.iter().product::<usize>()).flat_map(|_| number().to_le_bytes());
        (name.to_owned(), shape, numbers.collect::<Vec<u8>>())
    });
    let tensors: Vec<_> = tensors.collect();
    write(&model.join("model.safetensors"), Dtype::F32, &tensors);
    model
}

#[tokio::test]
async fn int8_layers_are_fitted_to_sample_texts() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = wider_bert(folder.path());
    let build = |name: &str, precision| {
        let out = folder.path().join(name);
        let request = request_without_floor(Task::FeatureExtraction, &source, out, Some(precision));
        build_request(&request, runtime).unwrap()
    };
    let bundle = build("first", Precision::Int8);
    let weights = &bundle.manifest().weights;
    assert!(
        weights.plan.contains("; 8 matrices fitted to "),
        "{}",
        weights.plan
    );
    let graph = ModelProto::from_bytes(&bundle.read("model.onnx").unwrap())
        .unwrap()
        .graph
        .unwrap();
    let calls = |name: &str| {
        graph
            .node
            .iter()
            .filter(|node| node.op_type == name)
            .count()
    };
    let [scaled, plain] = ["ScaledLinearInWideBlocks", "QuantizedLinearInWideBlocks"].map(calls);
    assert!(
        scaled > 0 && scaled + plain == 8 && calls("QuantizedLinear") == 0,
        "{scaled}, {plain}"
    );
    // The same build again has the same bits.
    let again = build("second", Precision::Int8);
    for file in ["model.onnx", "weights.bin"] {
        assert!(
            bundle.read(file).unwrap() == again.read(file).unwrap(),
            "{file}"
        );
    }
    is_equal_in_onnx_runtime("wider-bert", &bundle).await;
}

/// Checks vector bits by digests recorded on a processor with AVX-512 VNNI.
#[test]
fn the_bits_are_the_same_on_every_processor() {
    let folder = tempfile::tempdir().unwrap();
    let mut digests = Vec::new();
    for name in [
        "tiny-xlm-roberta",
        "tiny-modernbert",
        "tiny-qwen3 in blocks",
    ] {
        let Some(bundle) = build(name, folder.path()) else {
            return;
        };
        let output = model(&bundle).run(Sequence::from(&text(0, 60))).unwrap();
        let bits = output[0]
            .iter()
            .flat_map(|value| value.to_bits().to_le_bytes());
        digests.push(blake3::hash(&bits.collect::<Vec<u8>>()).to_hex()[..16].to_owned());
    }
    insta::assert_snapshot!(digests.join(" "), @"db5c554c4e61cc57 93a2b0752bb074c4 8077cbf516210e60");
}

#[tokio::test]
async fn texts_without_tokens_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let Some(bundle) = build("tiny-bert", folder.path()) else {
        return;
    };
    let backend = backend(&bundle, 1);
    let unattended = Encoding {
        unattended: 3,
        ..text(0, 3)
    };
    for empty in [text(0, 0), unattended] {
        let refusal = run(&backend, &[text(0, 3), empty], deadline()).await;
        insta::allow_duplicates! {
            insta::assert_snapshot!(refusal.unwrap_err(), @"a text has no tokens");
        }
    }
}

#[tokio::test]
async fn tokens_outside_of_the_tables_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let Some(bundle) = build("tiny-bert", folder.path()) else {
        return;
    };
    let backend = backend(&bundle, 1);
    let refused = async |text: Encoding| {
        let error = run(&backend, &[text], deadline()).await.unwrap_err();
        error.to_string()
    };
    let error = refused(encoding(vec![1, u32::MAX, 1])).await;
    assert!(
        error.starts_with("expected token ids from 0 to ") && error.ends_with("found 4294967295"),
        "{error}"
    );
    let other_type = Encoding {
        type_ids: vec![1, 2, 1],
        ..text(0, 3)
    };
    insta::assert_snapshot!(refused(other_type).await, @"expected token types from 0 to 1, but found 2");
    let error = refused(text(0, 2000)).await;
    assert!(
        error.starts_with("expected positions from 0 to "),
        "{error}"
    );
}

/// Graphs with one or two defects: a changed operator, name, shape, attribute or place in the weights file. They are
/// refused when they are opened, or run without a panic.
#[test]
fn damaged_graphs_are_refused_or_run() {
    let folder = tempfile::tempdir().unwrap();
    let (mut refused, mut run) = (0, 0);
    for name in [
        "tiny-bert",
        "tiny-roberta-nli",
        "tiny-mpnet",
        "tiny-jina",
        "tiny-modernbert-rank",
        "tiny-deberta-v2",
    ] {
        let Some(bundle) = build(name, folder.path()) else {
            return;
        };
        let whole =
            ModelProto::from_bytes(&bundle.read(&bundle.manifest().graph).unwrap()).unwrap();
        let text = text(0, 17);
        let mut random = fastrand::Rng::with_seed(20);
        for number in 0..400 {
            let mut damaged = whole.clone();
            for _ in 0..=number % 2 {
                damage(damaged.graph.as_mut().unwrap(), &mut random);
            }
            match open(&damaged.encode_to_vec(), &bundle) {
                Err(_) => refused += 1,
                Ok(model) => {
                    run += 1;
                    if let Ok(output) = model.run(Sequence::from(&text)) {
                        assert!(!output.is_empty());
                    }
                }
            }
        }
    }
    assert!(
        refused > 1000 && run > 200,
        "{refused} graphs were refused, and {run} were run"
    );
}

fn damage(graph: &mut GraphProto, random: &mut fastrand::Rng) {
    const LENGTHS: [i64; 10] = [-1, 0, 1, 2, 15, 16, 32, 33, 1 << 20, i64::MAX];
    let names = graph
        .node
        .iter()
        .flat_map(|node| node.input.iter().chain(&node.output));
    let names: Vec<String> = names
        .chain(graph.input.iter().map(|input| &input.name))
        .cloned()
        .collect();
    let operators: Vec<_> = graph
        .node
        .iter()
        .map(|node| (node.domain.clone(), node.op_type.clone()))
        .collect();
    let name = random.choice(names).unwrap();
    let length = random.choice(LENGTHS).unwrap();
    if random.u8(..3) > 0 {
        let index = random.usize(..graph.node.len());
        let node = &mut graph.node[index];
        match random.u8(..6) {
            0 => (node.domain, node.op_type) = random.choice(operators).unwrap(),
            1 if !node.input.is_empty() => *random.choice(&mut node.input).unwrap() = name,
            2 => *random.choice(&mut node.output).unwrap() = name,
            3 if !node.attribute.is_empty() => {
                let attribute = random.choice(&mut node.attribute).unwrap();
                (attribute.i, attribute.f) = (length, f32::NAN);
                attribute.ints.iter_mut().for_each(|int| *int = length);
            }
            4 => drop(node.input.pop()),
            _ => drop(graph.node.remove(index)),
        }
    } else {
        let tensor = random.choice(&mut graph.initializer).unwrap();
        match random.u8(..4) {
            0 if !tensor.dims.is_empty() => *random.choice(&mut tensor.dims).unwrap() = length,
            1 => drop(tensor.dims.pop()),
            2 => tensor.data_type = random.choice([1, 2, 3, 6, 7, 10]).unwrap(),
            _ => {
                let entries = tensor
                    .external_data
                    .iter_mut()
                    .filter(|entry| entry.key != "location");
                entries.for_each(|entry| entry.value = length.to_string());
                tensor.raw_data.truncate(3);
            }
        }
    }
}

/// The memory that the backend reports for each token, compared with what runs allocate.
#[test]
fn the_memory_of_a_text_is_known() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["tiny-modernbert", "tiny-jina", "tiny-gte"] {
        let Some(bundle) = build(name, folder.path()) else {
            return;
        };
        let (model, backend) = (model(&bundle), backend(&bundle, 1));
        let memory = |tokens: usize| {
            let text = encoding(vec![1; tokens]);
            let run = || drop(model.run(Sequence::from(&text)).unwrap());
            let taken = allocation_counter::measure(run).bytes_max;
            [backend.text_bytes(tokens).unwrap(), taken]
        };
        let (short, long) = (memory(64), memory(288));
        let ratio = (long[0] - short[0]) as f64 / (long[1] - short[1]) as f64;
        assert!((0.9..1.1).contains(&ratio), "{name}: {short:?}, {long:?}");
    }
}

#[test]
fn each_engine_can_be_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let Some(bundle) = build("tiny-bert", folder.path()) else {
        return;
    };
    let open = |bundle: &Bundle, engine| serve_in(&bundle.path(""), engine);
    let arithmetic = |engine| open(&bundle, engine).unwrap().arithmetic.unwrap();
    assert!(arithmetic(EngineChoice::Auto).contains("native engine"));
    assert!(arithmetic(EngineChoice::Native).contains("native engine"));
    assert!(!arithmetic(EngineChoice::Onnx).contains("native engine"));

    // A graph for ONNX Runtime.
    let mut request = recipe("tiny-bert", folder.path());
    request.out = folder.path().join("for-onnx");
    request.engine = EngineChoice::Onnx;
    let onnx = build_request(&request, runtime().unwrap()).unwrap();
    assert_eq!(onnx.manifest().engine, Engine::Onnx);
    assert!(open(&onnx, EngineChoice::Auto).is_ok());
    let error = open(&onnx, EngineChoice::Native).unwrap_err().chain();
    assert!(
        error.contains("expected a graph that the native engine supports"),
        "{error}"
    );
}
