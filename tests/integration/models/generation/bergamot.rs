//! Compares the real English–Portuguese models with the engine in the package that they come from.

use std::{fs, time::Duration};

use kivu::{
    backend::Deadline,
    model::{Model, Pipeline},
    pipeline::{
        generation::GenerationOptions,
        seq2seq::{Seq2SeqOptions, Split},
    },
    repository::manifest::{Precision, Quality},
};
use serde_json::Value;

use crate::models::{build_request, fixtures, request, runtime, serve};

/// The token for characters that the vocabulary lacks.
const UNKNOWN: u32 = 1;

/// Texts in one direction, and the engine's translations.
fn golden(direction: &str) -> (Vec<String>, Vec<String>) {
    let golden: Value =
        serde_json::from_slice(&fs::read(fixtures().join("goldens/bergamot.json")).unwrap())
            .unwrap();
    let pairs: Vec<(String, String)> = serde_json::from_value(golden[direction].clone()).unwrap();
    assert_eq!(pairs.len(), 200);
    pairs.into_iter().unzip()
}

async fn translate(model: &Model, texts: Vec<String>) -> Vec<String> {
    let Pipeline::Translation(pipeline) = &model.pipeline else {
        panic!("{} translates", model.name)
    };
    let options = Seq2SeqOptions {
        source: None,
        target: None,
        // The engine does not split lines into sentences.
        split: Some(Split::Never),
        truncate: false,
        clean_up_spaces: false,
        generation: GenerationOptions::default(),
        max_sentences: texts.len(),
    };
    let deadline = Deadline::within(Duration::from_secs(300));
    let translations = pipeline.generate(texts, &options, deadline).await.unwrap();
    translations
        .texts
        .into_iter()
        .flatten()
        .map(|translation| translation.text)
        .collect()
}

#[tokio::test]
async fn in_fp32_every_text_is_that_of_the_engine() {
    let Some(runtime) = runtime() else { return };
    let root = fixtures().join("../..");
    for direction in ["en-pt", "pt-en"] {
        let name = format!("translate-{direction}");
        if !root.join(".kivu/bundles").join(&name).is_dir() {
            crate::skips::missing(format_args!("the bundle of {name}"));
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let recipe = root.join("models").join(format!("{name}.toml"));
        let mut request = request(recipe, folder.path().join("fp32"), Some(Precision::Fp32));
        request.cache = root.join(".kivu");
        build_request(&request, runtime).unwrap();
        let (texts, expected) = golden(direction);
        let model = serve(&folder.path().join("fp32")).unwrap();
        let is_known: Vec<bool> = texts.iter().map(|text| is_known(&model, text)).collect();
        let found = translate(&model, texts.clone()).await;
        let pairs = found.iter().zip(&expected).zip(texts.iter().zip(is_known));
        // The engine loses characters that the vocabulary lacks.
        let wrong: Vec<_> = pairs
            .filter(|((found, expected), (_, is_known))| *is_known && found != expected)
            .collect();
        assert!(
            wrong.is_empty(),
            "{direction}: {} of 200 differ: {wrong:#?}",
            wrong.len()
        );
        unknown_text_is_kept(&model, direction).await;
    }
}

/// Whether the vocabulary has all characters of a text.
fn is_known(model: &Model, text: &str) -> bool {
    let Pipeline::Translation(pipeline) = &model.pipeline else {
        panic!("{} translates", model.name)
    };
    let ids = pipeline.tokenizer().ids(text).unwrap();
    !ids.contains(&UNKNOWN) && !text.contains("</s>")
}

/// Translates texts that have characters which the vocabulary lacks.
async fn unknown_text_is_kept(model: &Model, direction: &str) {
    let texts = match direction {
        "en-pt" => vec![
            "She said “yes” to him.",
            "He left — finally — at 5–6 o’clock…",
            "Hello {name}, you have {count} new messages.",
            "😀",
            "Привет",
            "Visit https://example.org/a or mail bob@example.com.",
            "Hello! 😊 How are you?",
            "C# and C++",
            "Click <b>Save</b> to keep your changes.",
            "Mr. Müller went to the store with his wife.",
            "Müller’s house is big.",
            "</s> and <unk> are tokens.",
            "The price is €50 per month.",
            "今日は天気がいい",
            "Use `git pull` before {{ step }}.",
        ],
        _ => vec![
            "Ele disse: «Nunca mais».",
            "Escreva-nos para apoio@exemplo.pt ou ligue 800 123 456.",
            "O Müller e a Jiřina encontraram-se em São João da Madeira.",
            "Custa 1.249,90 € com IVA incluído.",
            "Olá {nome}, bem-vindo 🎉",
        ],
    };
    let found = translate(model, texts.into_iter().map(str::to_owned).collect()).await;
    match direction {
        "en-pt" => insta::assert_snapshot!(found.join("\n"), @r#"
        Ela disse "sim" para ele.
        Ele saiu - finalmente - às 5-6 horas...
        Olá {name}, você tem {count} novas mensagens.
        😀
        Привет
        Visite https://example.org/a ou mail bob@example.com.
        Olá! 😊 Como você está?
        C# e C++
        Clique em <b>Salvar</b> para manter suas alterações.
        O Sr. Müller foi para a loja com sua esposa.
        Müller’s casa é grande.
        </s> e <unk> são tokens.
        O preço é €50 por mês.
        今日は天気がいい
        Use `git pull` antes de {{ step }}.
        "#),
        _ => insta::assert_snapshot!(found.join("\n"), @r#"
        He said, "Never again."
        Write us for apoio@exemplo.pt or call 800 123 456.
        The Müller and Jiřina met in São João da Madeira.
        It costs 1,249,90 € VAT included.
        Hello {nome}, welcome 🎉
        "#),
    }
}

#[tokio::test]
async fn in_int8_texts_are_like_those_of_fp32_and_cannot_end_early() {
    if runtime().is_none() {
        return;
    }
    for direction in ["en-pt", "pt-en"] {
        let bundle = fixtures()
            .join("../../.kivu/bundles")
            .join(format!("translate-{direction}"));
        if !bundle.is_dir() {
            crate::skips::missing(format_args!("the bundle of translate-{direction}"));
            return;
        }
        let model = serve(&bundle).unwrap();
        let Some(Quality::Seq2Seq {
            similarity,
            similarity_without_shortlist,
            token_agreement,
            ..
        }) = model.manifest.weights.quality
        else {
            panic!("the build measures translations");
        };
        assert!(
            similarity >= 0.97 && token_agreement >= 0.97,
            "{similarity} {token_agreement}"
        );
        assert!(similarity_without_shortlist.unwrap() >= 0.97);
        let (texts, expected) = golden(direction);
        let found = translate(&model, texts[..60].to_vec()).await;
        let same = found
            .iter()
            .zip(&expected)
            .filter(|(found, expected)| found == expected)
            .count();
        assert!(same > 30, "only {same} of 60 are the same");
        // Special tokens' strings have no special meaning in texts.
        let odd = ["</s> Bom dia", "Bom </s> dia", "<unk>"];
        let found = translate(&model, odd.map(str::to_owned).to_vec()).await;
        assert!(found[0].starts_with("</s> "), "{found:?}");
        assert!(
            found[1].contains("</s>") && found[2] == "<unk>",
            "{found:?}"
        );
    }
}
