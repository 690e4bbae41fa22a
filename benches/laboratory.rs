//! Measurements for the project's own figures, most of them collected by `benches/bench.py`: cold-start phases, the bare
//! runtime's usual schedule, the decoding loop against its session, HTTP latencies, bundle and row reading, and the error
//! of single matrices in 8 bits.
//!
//! Each command prints one JSON value.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a measurement that fails ends the program"
)]

use std::{
    env, fs,
    hint::black_box,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    num::NonZeroUsize,
    path::Path,
    sync::mpsc,
    thread::available_parallelism,
    time::{Duration, Instant},
};

use kivu::{
    Error, Result,
    backend::{
        Deadline,
        encoder::Sequence,
        model_inputs::ModelInputs,
        seq2seq::{Decoder, Seq2SeqBackend},
        similarity::Query,
    },
    cloud::Cloud,
    config::Config,
    model::{Model, Pipeline},
    onnx::{Runtime, Session, library},
    pipeline::{
        Input,
        embedding::{EmbeddingOptions, EmbeddingPipeline, RequestedVectors, VectorKind},
        generation::{GenerationOptions, SourceInfo, generate},
        seq2seq::{Decoding, Seq2SeqOptions},
    },
    repository::Bundle,
    tensor::Tensor,
    tokenizer::{Encoding, Side, Tokenizer, Truncation},
};
use kivu_compiler::quality::SENTENCES;
use kivu_jobs::pass_through;
use safetensors::SafeTensors;
use serde_json::{Value, json};

const USAGE: &str = "\
usage: laboratory parts BUNDLE            milliseconds per cold-start phase, in this process
       laboratory unsorted BUNDLE SECONDS texts per second with the bare runtime: 32 unsorted texts per run, padded
       laboratory single BUNDLE           milliseconds per run with a short text
       laboratory decode BUNDLE           tokens per second for the decoding loop, and for its session alone
       laboratory ask ADDRESS FILE …      request latency in milliseconds, for requests from files
       laboratory table FOLDER            texts per second for a static embedding's tokenizer and table, without Kivu
       laboratory late FILE               milliseconds to score documents by late interaction, and the scores
       laboratory kinds BUNDLE DENSE      milliseconds per text for all vector kinds from one run, for one kind after
                                          the other, and for the dense-only bundle DENSE
       laboratory rows                    microseconds to read and write a row";

const SHORT: &str = "What is deep learning?";
/// Batch size for the runtime.
const ROWS: usize = 32;
/// Requests or runs per latency measurement; the first tenth warms up.
const TURNS: usize = 400;
/// Rows in the file that is read and written.
const FILE_ROWS: usize = 200_000;
/// Texts for static embeddings, and words per text.
const SHORT_TEXTS: usize = 50_000;
const SHORT_WORDS: usize = 12;
/// The text to translate, in any language, and the number of tokens to generate.
const TEXT: &str =
    "The next train leaves from platform four at half past nine, so please be there on time.";
const TOKENS: usize = 32;
/// Repetitions per decoding; the first ones warm up.
const ROUNDS: usize = 24;
const WARM_UP: usize = 4;
/// Texts for the vector-kind measurement, their length, and repetitions; the first repetition warms up.
const KIND_TEXTS: usize = 16;
const KIND_CHARACTERS: usize = 100;
const KIND_ROUNDS: usize = 6;

fn main() {
    // `cargo bench` adds `--bench`.
    let arguments: Vec<String> = env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let measured = match arguments[..] {
        ["parts", bundle] => parts(&open(bundle)),
        ["unsorted", bundle, seconds] => {
            unsorted(&open(bundle), Duration::from_secs(seconds.parse().unwrap()))
        }
        ["single", bundle] => single(&open(bundle)),
        ["decode", bundle] => decode(Path::new(bundle)),
        ["ask", address, ref files @ ..] => ask(address, files),
        ["table", folder] => table(Path::new(folder)),
        ["late", file] => late(file),
        ["kinds", bundle, dense] => kinds([bundle, dense].map(Path::new)),
        ["rows"] => rows(),
        _ => {
            println!("{USAGE}");
            return;
        }
    };
    println!("{}", measured.unwrap());
}

fn open(bundle: &str) -> Bundle {
    Bundle::open(Path::new(bundle)).unwrap()
}

fn config() -> Config {
    Config::load(None, &Config::variables().unwrap()).unwrap()
}

fn runtime() -> Result<Runtime> {
    let config = config();
    Runtime::load(&library::locate(
        config.onnxruntime.as_deref(),
        &config.home,
    )?)
}

fn encode(tokenizer: &Tokenizer, bundle: &Bundle, text: &str) -> Encoding {
    let limit = bundle
        .manifest()
        .settings
        .embedding()
        .map_or(usize::MAX, |settings| settings.max_tokens);
    tokenizer
        .encode(text, limit, Truncation::At(Side::Right))
        .unwrap()
}

/// Cold-start phases that no program avoids, and reading the tokenizer, which can run concurrently.
fn parts(bundle: &Bundle) -> Result<Value> {
    let mut started = Instant::now();
    let mut lap = || ms(std::mem::replace(&mut started, Instant::now()).elapsed());
    let runtime = runtime()?;
    let library = lap();
    let session = Session::open(
        runtime,
        bundle.path(&bundle.manifest().graph).as_path(),
        NonZeroUsize::MIN,
    )?;
    let session_ms = lap();
    let tokenizer = bundle.tokenizer()?;
    let tokenizer_ms = lap();
    let encoding = encode(&tokenizer, bundle, SHORT);
    lap();
    session.run(&inputs(&session, &[Sequence::from(&encoding)]))?;
    Ok(
        json!({ "library": library, "session": session_ms, "first run": lap(), "tokenizer": tokenizer_ms }),
    )
}

fn unsorted(bundle: &Bundle, time: Duration) -> Result<Value> {
    let tokenizer = bundle.tokenizer()?;
    let cpus = available_parallelism().unwrap();
    let session = Session::open(
        runtime()?,
        bundle.path(&bundle.manifest().graph).as_path(),
        cpus,
    )?;
    let encodings: Vec<_> = SENTENCES
        .lines()
        .map(|text| encode(&tokenizer, bundle, text))
        .collect();
    let batches: Vec<_> = encodings
        .chunks(ROWS)
        .map(|batch| (batch.len(), padded(&session, batch)))
        .collect();
    let (mut done, started) = (0, Instant::now());
    for (rows, inputs) in batches.iter().cycle() {
        session.run(inputs)?;
        done += rows;
        if started.elapsed() >= time {
            break;
        }
    }
    Ok((done as f64 / started.elapsed().as_secs_f64()).into())
}

fn padded(session: &Session, batch: &[Encoding]) -> Vec<Tensor> {
    let batch: Vec<_> = batch.iter().map(Sequence::from).collect();
    inputs(session, &batch)
}

fn inputs(session: &Session, batch: &[Sequence<'_>]) -> Vec<Tensor> {
    let inputs = ModelInputs::recognize(session.signature()).unwrap();
    inputs.tensors(batch, 0).unwrap()
}

fn single(bundle: &Bundle) -> Result<Value> {
    let session = Session::open(
        runtime()?,
        bundle.path(&bundle.manifest().graph).as_path(),
        NonZeroUsize::MIN,
    )?;
    let encoding = encode(&bundle.tokenizer()?, bundle, SHORT);
    let inputs = inputs(&session, &[Sequence::from(&encoding)]);
    let run = |_| {
        let started = Instant::now();
        session.run(&inputs).unwrap();
        ms(started.elapsed())
    };
    Ok(latency((0..TURNS).map(run)))
}

/// Median request latency on one connection; sends the files in turn.
fn ask(address: &str, files: &[&str]) -> Result<Value> {
    let requests: Vec<_> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut connection = BufReader::new(stream);
    let mut ask = |turn: usize| {
        let started = Instant::now();
        connection
            .get_mut()
            .write_all(&requests[turn % requests.len()])
            .unwrap();
        let (mut head, mut length) = (String::new(), 0);
        while !head.ends_with("\r\n\r\n") {
            let start = head.len();
            assert!(connection.read_line(&mut head).unwrap() > 0, "{head}");
            length = head[start..]
                .strip_prefix("content-length:")
                .map_or(length, |length| length.trim().parse().unwrap());
        }
        connection.read_exact(&mut vec![0; length]).unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        ms(started.elapsed())
    };
    Ok(latency((0..TURNS).map(&mut ask)))
}

fn decode(bundle: &Path) -> Result<Value> {
    let models = Model::open_all(
        &Config {
            models: vec![bundle.to_owned().into()],
            ..config()
        },
        &Cloud::default(),
    )?;
    let Pipeline::Translation(pipeline) = &models[0].pipeline else {
        return Err(Error::config(
            "expected a bundle for translation, but found one for another task",
        ));
    };
    let languages = pipeline.directions().example_pair();
    let waiting = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let mut figures = Vec::new();
    for beams in [1, 5] {
        let generation = GenerationOptions {
            num_beams: Some(beams),
            min_new_tokens: Some(TOKENS),
            max_new_tokens: Some(TOKENS),
            ..GenerationOptions::default()
        };
        let options = Seq2SeqOptions {
            source: Some(languages.source.clone()),
            target: Some(languages.target.clone()),
            split: None,
            truncate: true,
            clean_up_spaces: false,
            generation,
            max_sentences: 1,
        };
        let decoding = pipeline.decoding_of(TEXT, &options)?;
        let backend = pipeline.local().unwrap().as_ref();
        let run = |steps| {
            waiting
                .block_on(decode_once(backend, &decoding, steps))
                .unwrap()
        };
        let (mut looped, mut alone) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let (time, tokens) = run(Steps::Loop);
            looped.push(TOKENS as f64 / time.as_secs_f64());
            let (time, _) = run(Steps::Session {
                tokens,
                rows: beams,
            });
            alone.push(TOKENS as f64 / time.as_secs_f64());
        }
        let median = |values: &[f64]| median(values[WARM_UP..].to_vec());
        figures.push(json!({ "beams": beams, "loop": median(&looped), "session": median(&alone) }));
    }
    Ok(figures.into())
}

/// What generates the tokens.
enum Steps {
    /// The decoding loop.
    Loop,
    /// The given tokens, in all rows; scores are ignored.
    Session { tokens: Vec<i64>, rows: usize },
}

/// Duration of the steps without the encoder, and the tokens fed.
async fn decode_once(
    backend: &dyn Seq2SeqBackend,
    decoding: &Decoding,
    steps: Steps,
) -> Result<(Duration, Vec<i64>)> {
    let (sender, receiver) = mpsc::channel();
    let Decoding { sources, config } = decoding.clone();
    let source = SourceInfo {
        length: sources.rows[0].len(),
        number: 0,
    };
    let deadline = Deadline::within(Duration::from_secs(60));
    let work = Box::new(move |decoder: &mut dyn Decoder| {
        let started = Instant::now();
        let tokens = match steps {
            Steps::Loop => {
                let generated = generate(decoder, &[source], &config, deadline)?
                    .remove(0)
                    .remove(0);
                std::iter::once(config.start())
                    .chain(generated.ids)
                    .take(TOKENS)
                    .collect()
            }
            Steps::Session { tokens, rows } => {
                // As in the loop, the beams begin as one row.
                let mut count = 1;
                for token in &tokens {
                    decoder.step(&vec![*token; count])?;
                    if count < rows {
                        decoder.reorder(&vec![0; rows])?;
                        count = rows;
                    }
                }
                tokens
            }
        };
        sender.send((started.elapsed(), tokens)).unwrap();
        Ok(())
    });
    backend.decode(sources, deadline, work).await?;
    Ok(receiver.recv().unwrap())
}

/// `tokenizers` throughput and time to average a table's rows, on one thread.
fn table(folder: &Path) -> Result<Value> {
    let read = |name: &str| fs::read(folder.join(name)).unwrap();
    let mut tokenizer = tokenizers::Tokenizer::from_bytes(read("tokenizer.json")).unwrap();
    tokenizer.with_padding(None).with_truncation(None).unwrap();
    let weights = read("model.safetensors");
    let weights = SafeTensors::deserialize(&weights).unwrap();
    let weights = weights.tensor("embedding.weight").unwrap();
    let numbers = weights
        .data()
        .as_chunks()
        .0
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes));
    let (table, width): (Vec<f32>, _) = (numbers.collect(), weights.shape()[1]);
    let texts = short_texts();
    let pass = |_| {
        let started = Instant::now();
        for text in &texts {
            let encoding = tokenizer.encode_fast(text.as_str(), false).unwrap();
            let mut mean = vec![0.0; width];
            for id in encoding.get_ids() {
                let row = &table[*id as usize * width..][..width];
                mean.iter_mut()
                    .zip(row)
                    .for_each(|(sum, value)| *sum += value);
            }
            let count = encoding.len() as f32;
            mean.iter_mut().for_each(|value| *value /= count);
            black_box(mean);
        }
        texts.len() as f64 / started.elapsed().as_secs_f64()
    };
    Ok(median((0..5).map(pass).collect()).into())
}

/// Texts with 12 words each.
fn short_texts() -> Vec<String> {
    let words: Vec<&str> = SENTENCES.split_whitespace().collect();
    words
        .chunks_exact(SHORT_WORDS)
        .map(|words| words.join(" "))
        .cycle()
        .take(SHORT_TEXTS)
        .collect()
}

/// Document scores for late interaction. The file contains the vectors for a query and each document.
fn late(file: &str) -> Result<Value> {
    type Vectors = Vec<Vec<f32>>;
    let (query, documents): (Vectors, Vec<Vectors>) =
        serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let (width, query) = (query[0].len(), query.concat());
    let documents: Vec<Vec<f32>> = documents.iter().map(|vectors| vectors.concat()).collect();
    let score = || -> Vec<f32> {
        let query = Query::new(&query, width);
        documents
            .iter()
            .map(|document| query.largest_products(document).iter().sum())
            .collect()
    };
    let run = |_| {
        let started = Instant::now();
        black_box(score());
        ms(started.elapsed())
    };
    Ok(json!({ "ms": latency((0..TURNS).map(run)), "scores": score() }))
}

/// Time per text for all vector kinds from one run, for one kind after the other, and for a dense-only model.
fn kinds(bundles: [&Path; 2]) -> Result<Value> {
    let models = bundles.map(|bundle| bundle.to_owned().into()).into();
    let models = Model::open_all(&Config { models, ..config() }, &Cloud::default())?;
    let pipelines = models.iter().map(|model| match &model.pipeline {
        Pipeline::Embedding(pipeline) => Ok(pipeline),
        _ => Err(Error::config(
            "expected a bundle for embeddings, but found one for another task",
        )),
    });
    let pipelines = pipelines.collect::<Result<Vec<_>>>()?;
    let texts: Vec<String> = SENTENCES
        .lines()
        .take(KIND_TEXTS)
        .map(|text| text.chars().take(KIND_CHARACTERS).collect())
        .collect();
    let waiting = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let options = EmbeddingOptions {
        truncation: Truncation::At(Side::Right),
        normalize: None,
        prompt_name: None,
        prompt: None,
        task: None,
        dimensions: None,
        max_values: usize::MAX,
    };
    let run = |pipeline: &EmbeddingPipeline, kinds: &[VectorKind]| -> Result<f64> {
        let requested = RequestedVectors {
            kinds: kinds.into(),
            max_active_dims: None,
        };
        let inputs = texts.iter().cloned().map(Input::Text).collect();
        let deadline = Deadline::within(Duration::from_secs(600));
        let started = Instant::now();
        waiting.block_on(pipeline.embed_kinds(inputs, &requested, &options, deadline))?;
        Ok(ms(started.elapsed()) / texts.len() as f64)
    };
    const KINDS: [VectorKind; 3] = [
        VectorKind::Dense,
        VectorKind::Sparse,
        VectorKind::MultiVector,
    ];
    let (mut all, mut apart, mut dense) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..KIND_ROUNDS {
        all.push(run(pipelines[0], &KINDS)?);
        dense.push(run(pipelines[1], &KINDS[..1])?);
        apart.push(
            KINDS
                .iter()
                .map(|kind| run(pipelines[0], &[*kind]))
                .sum::<Result<f64>>()?,
        );
    }
    let [all, apart, dense] = [all, apart, dense].map(|times| median(times[1..].to_vec()));
    Ok(json!({ "all": all, "apart": apart, "dense": dense }))
}

/// Microseconds to read and write a row of JSON Lines without running a model.
fn rows() -> Result<Value> {
    let texts = SENTENCES.lines().cycle().take(FILE_ROWS).enumerate();
    let lines: String = texts
        .map(|(id, text)| format!("{}\n", json!({ "id": id, "text": text })))
        .collect();
    let pass = |_| {
        let lines = lines.clone().into_bytes();
        let started = Instant::now();
        assert_eq!(pass_through(lines).unwrap(), FILE_ROWS);
        ms(started.elapsed()) * 1000.0 / FILE_ROWS as f64
    };
    Ok(median((0..3).map(pass).collect()).into())
}

/// Median in milliseconds, without the warm-up.
fn latency(times: impl Iterator<Item = f64>) -> Value {
    median(times.skip(TURNS / 10).collect()).into()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
