//! Damaged bundle bits: an error, or the right answer.

use std::fs;

use kivu::{
    backend::Deadline,
    model::{Model, Pipeline},
    pipeline::{Input, embedding::EmbeddingOptions},
    repository::Bundle,
    tokenizer::{Side, Truncation},
};

use crate::{flips::Flips, models::serve, server::bundle};

fn embedded(model: &Model) -> kivu::Result<Vec<Vec<f32>>> {
    let Pipeline::Embedding(pipeline) = &model.pipeline else {
        panic!("tiny-bert embeds")
    };
    let options = EmbeddingOptions {
        truncation: Truncation::At(Side::Right),
        normalize: None,
        prompt_name: None,
        prompt: None,
        task: None,
        dimensions: None,
        max_values: usize::MAX,
    };
    let inputs = ["the cat sat", "a dog"]
        .map(|text| Input::Text(text.into()))
        .into();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let deadline = Deadline::within(std::time::Duration::from_secs(60));
    runtime
        .block_on(pipeline.embed(inputs, &options, deadline))
        .map(|embeddings| embeddings.vectors)
}

#[test]
fn a_damaged_bundle_never_gives_another_answer() {
    let Some((_folder, bundle)) = bundle() else {
        return;
    };
    let expected = embedded(&serve(&bundle).unwrap()).unwrap();
    let files: Vec<String> = Bundle::open(&bundle)
        .unwrap()
        .manifest()
        .files
        .iter()
        .map(|file| file.name.clone())
        .collect();
    let mut random = Flips::new();
    let (mut noticed, mut tried) = (0, 0);
    for file in files.iter().map(String::as_str).chain(["manifest.toml"]) {
        let path = bundle.join(file);
        let whole = fs::read(&path).unwrap();
        for _ in 0..Flips::count() {
            let mut damaged = whole.clone();
            random.flip(&mut damaged);
            fs::write(&path, damaged).unwrap();
            match serve(&bundle).and_then(|model| embedded(&model)) {
                Ok(vectors) => assert!(vectors == expected, "{file}: other vectors"),
                Err(_) => noticed += 1,
            }
            tried += 1;
        }
        fs::write(&path, whole).unwrap();
    }
    // `tokenizer.json` is not read, since it was compiled, and damage in the manifest's first comment
    // may change nothing.
    let read = files
        .iter()
        .filter(|file| file.as_str() != "tokenizer.json")
        .count()
        + 1;
    eprintln!("{noticed} of {tried} damaged bits were refused");
    assert!(
        noticed * 100 >= read * Flips::count() * 98,
        "{noticed} of {tried}"
    );
}
