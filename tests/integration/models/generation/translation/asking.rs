//! All translation routes, with valid and invalid requests, on a scripted model that repeats its source.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{Request, Response, StatusCode},
};
use kivu::{
    backend::scripted::ScriptedSeq2Seq,
    config::Limits,
    model::{Local, Model},
    repository::manifest::Precision,
    tokenizer::Tokenizer,
};
use kivu_http::{App, router};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{
    classification::fast_text::identifying_model,
    messages::{self, answer},
    models::{fixtures, open, runtime},
};

const START: i64 = 2;
const END: i64 = 2;
const VOCABULARY: usize = 646;
/// A source that begins with this token has an endless target.
const ENDLESS: &str = "deu_Latn";

fn tokenizer() -> Arc<Tokenizer> {
    Arc::new(Tokenizer::open(&fixtures().join("models/tiny-nllb/tokenizer.json")).unwrap())
}

fn token(tokenizer: &Tokenizer, text: &str) -> i64 {
    i64::from(tokenizer.ids(text).unwrap()[0])
}

/// A model that repeats its source: the same tokens after the language token.
fn model(name: &str, codes: &[&str]) -> Model {
    let tokenizer = tokenizer();
    let endless = token(&tokenizer, ENDLESS);
    let sequences = ScriptedSeq2Seq::new(VOCABULARY, move |source, target| {
        let mut scores: Vec<f32> = (0..VOCABULARY)
            .map(|token| -(token as f32) / 1000.0)
            .collect();
        // The decoder's first token and the language come before the text.
        let next = match source.get(target.len() - 1) {
            Some(token) if source[0] != endless => *token,
            Some(_) => 9,
            None => END,
        };
        scores[next as usize] = 20.0;
        if source[0] == endless {
            std::thread::sleep(Duration::from_millis(2));
            scores[END as usize] = -20.0;
        }
        scores
    });
    let codes: Vec<_> = codes
        .iter()
        .map(|code| format!("{code} = {}", token(&tokenizer, code)))
        .collect();
    let manifest = format!(
        r#"format = 2
        name = {name:?}
        task = "translation"
        graph = "encoder.onnx"
        files = []
        source = {{ architecture = "M2M100", from = "tiny", sha256 = "" }}
        weights = {{ precision = "fp32", plan = "none" }}
        signature = {{ inputs = [], outputs = [] }}
        [settings.seq2seq]
        max_tokens = 24
        max_positions = 64
        [settings.seq2seq.decoder]
        graph = "decoder.onnx"
        [settings.seq2seq.decoder.signature]
        inputs = [{{ name = "input_ids", element_type = "INT64", shape = [-1, 1] }}]
        outputs = [{{ name = "logits", element_type = "FP32", shape = [-1, {VOCABULARY}] }}]
        [settings.seq2seq.languages]
        kind = "tokens"
        codes = {{ {} }}
        side = "before"
        [settings.seq2seq.generation]
        decoder_start_token_id = {START}
        eos_token_ids = [{END}]
        pad_token_id = 1
        defaults = {{ max_length = 40 }}"#,
        codes.join(", ")
    );
    Model::from_parts(&manifest, tokenizer, Local::Seq2Seq(Arc::new(sequences))).unwrap()
}

fn app_with(limits: Limits) -> Router {
    let all = [
        "eng_Latn", "fra_Latn", "por_Latn", "deu_Latn", "zho_Hans", "zho_Hant",
    ];
    router(App::new(
        vec![model("two", &["eng_Latn", "fra_Latn"]), model("all", &all)],
        limits,
    ))
}

fn limits() -> Limits {
    Limits {
        texts: 8,
        ..Limits::default()
    }
}

async fn ask_with(limits: Limits, path: &str, body: &Value) -> (StatusCode, Value) {
    messages::ask(&app_with(limits), path, body).await
}

async fn ask(path: &str, body: &Value) -> (StatusCode, Value) {
    ask_with(limits(), path, body).await
}

/// By `MarianTokenizer.decode`, too, which has the target's vocabulary.
#[tokio::test]
async fn ids_of_targets_are_decoded() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = fixtures().join("models/tiny-marian");
    let model = open(source, folder.path(), Some(Precision::Fp32), runtime).unwrap();
    let app = router(App::new(vec![model], limits()));
    let body = json!({ "ids": [17, 121, 120, 62, 45, 175, 83, 67] });
    let (_, found) = messages::ask(&app, "/decode", body).await;
    assert_eq!(found, json!(["A \u{212a}icco垫pel"]));
}

#[tokio::test]
async fn languages_that_requests_do_not_name_are_identified() {
    let folder = tempfile::tempdir().unwrap();
    let Some(identifying) = identifying_model(folder.path()) else {
        return;
    };
    let all = ["eng_Latn", "fra_Latn", "por_Latn", "zho_Hans", "zho_Hant"];
    let models = vec![
        model("two", &["eng_Latn", "fra_Latn"]),
        model("all", &all),
        identifying,
    ];
    let app = router(App::new(models, limits()));
    let ask = async |path: &str, body: Value| messages::ask(&app, path, body).await;
    let texts = json!(["O gato.", "The keys.", " "]);
    let (status, found) = ask(
        "/translate",
        json!({ "q": texts, "source": "auto", "target": "fr" }),
    )
    .await;
    assert_eq!(status, StatusCode::OK, "{found}");
    assert_eq!(found["translatedText"], texts);
    let languages = found["detectedLanguage"].as_array().unwrap();
    let codes: Vec<_> = languages
        .iter()
        .map(|found| found["language"].as_str().unwrap())
        .collect();
    assert_eq!(codes, ["pt", "en", "en"]);
    assert!(
        languages[..2]
            .iter()
            .all(|found| found["confidence"].as_f64().unwrap() > 75.0),
        "{found}"
    );
    assert_eq!(
        languages[2]["confidence"], 0.0,
        "a text of spaces has no language"
    );
    let (_, found) = ask("/translate", json!({ "q": "The keys.", "target": "fr" })).await;
    assert_eq!(found["detectedLanguage"]["language"], "en");
    // A named language is not identified.
    let (_, found) = ask(
        "/translate",
        json!({ "q": "The keys.", "source": "pt", "target": "fr" }),
    )
    .await;
    assert_eq!(found, json!({ "translatedText": "The keys." }));
    let (_, found) = ask(
        "/v2/translate",
        json!({ "text": ["O gato.", "The keys."], "target_lang": "FR" }),
    )
    .await;
    let codes = [0, 1].map(|text| found["translations"][text]["detected_source_language"].clone());
    assert_eq!(codes, ["PT", "EN"]);

    // The models for the languages differ.
    let (_, found) = ask(
        "/translate",
        json!({ "inputs": texts, "tgt_lang": "French" }),
    )
    .await;
    let of_texts = |field: &str| [0, 1, 2].map(|text| found["translations"][text][field].clone());
    assert_eq!(found["model"], "all");
    assert_eq!(of_texts("model"), ["all", "two", "two"]);
    assert_eq!(of_texts("src_lang"), ["por_Latn", "eng_Latn", "eng_Latn"]);
    assert_eq!(of_texts("text"), ["O gato.", "The keys.", " "]);
    let body = json!({ "inputs": "O gato.", "model": "all", "tgt_lang": "French" });
    let (_, found) = ask("/translate", body).await;
    assert_eq!(found["translations"][0]["src_lang"], "por_Latn");
    assert_eq!(found["translations"][0]["model"], Value::Null);

    for (path, body, expected) in [
        (
            "/translate",
            json!({ "q": "Ella lee cada noche.", "target": "fr" }),
            "found `es` (",
        ),
        (
            "/translate",
            json!({ "q": "Ella lee cada noche.", "target": "fr" }),
            "name the language in `source` if",
        ),
        (
            "/translate",
            json!({ "q": ["The keys.", "火车九点出发。"], "target": "fr" }),
            "text 1: expected a text in a language that can be translated, but found `zh`",
        ),
        (
            "/v2/translate",
            json!({ "text": "Ella lee cada noche.", "target_lang": "FR" }),
            "in `source_lang` if it is another",
        ),
        (
            "/translate",
            json!({ "inputs": "O gato.", "model": "two", "tgt_lang": "French" }),
            "found `pt` (",
        ),
        // Without a target, the first model decides.
        (
            "/translate",
            json!({ "inputs": "O gato." }),
            "expected the languages of the translation",
        ),
    ] {
        let (status, found) = ask(path, body).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
        assert!(found.to_string().contains(expected), "{found}");
    }
}

#[tokio::test]
async fn the_only_language_that_models_translate_from_needs_no_identification() {
    let app = router(App::new(vec![model("one", &["eng_Latn"])], limits()));
    let body = json!({ "q": ["cat", " "], "source": "auto", "target": "en" });
    let (status, found) = messages::ask(&app, "/translate", body).await;
    assert_eq!(status, StatusCode::OK, "{found}");
    let english = json!({ "confidence": 0.0, "language": "en" });
    assert_eq!(found["detectedLanguage"], json!([english, english]));
}

/// A refused request's status and message.
async fn refusal(path: &str, body: Value) -> String {
    let (status, body) = ask(path, &body).await;
    format!(
        "{}: {}",
        status.as_u16(),
        body["error"].as_str().unwrap_or("no message")
    )
}

/// A request to the hub's route that translates the cat.
fn cat(parameters: &Value) -> Value {
    json!({ "inputs": "The cat sits.", "parameters": parameters })
}

#[tokio::test]
async fn the_hub_route_returns_an_object_per_text() {
    let languages = json!({ "src_lang": "eng_Latn", "tgt_lang": "French" });
    let (status, one) = ask("/models/all", &cat(&languages)).await;
    assert_eq!(
        (status, one),
        (
            StatusCode::OK,
            json!([{ "translation_text": "The cat sits." }])
        )
    );
    let (_, at_root) = ask("/", &cat(&languages)).await;
    assert_eq!(
        at_root,
        json!([{ "translation_text": "The cat sits." }]),
        "the first model translates"
    );
    let two = json!({ "inputs": ["The cat.", "The dog."], "parameters": languages });
    let (_, two) = ask("/models/all", &two).await;
    assert_eq!(
        two,
        json!([{ "translation_text": "The cat." }, { "translation_text": "The dog." }])
    );
    let several = json!({ "num_beams": 3, "num_return_sequences": 2 });
    let several = json!({ "src_lang": "en", "tgt_lang": "fr", "generate_parameters": several });
    let (_, one) = ask("/models/two", &cat(&several)).await;
    assert_eq!(
        (one.as_array().unwrap().len(), &one[0]["translation_text"]),
        (2, &json!("The cat sits."))
    );
    let (_, lists) = ask(
        "/models/two",
        &json!({ "inputs": ["The cat.", "The"], "parameters": several }),
    )
    .await;
    assert_eq!(
        (
            lists.as_array().unwrap().len(),
            lists[1].as_array().unwrap().len()
        ),
        (2, 2)
    );
}

#[tokio::test]
async fn the_translate_route_keeps_spacing_and_reports_usage() {
    let text = "The cat sits. The dog sleeps!\n\n  She sold 1,250 shares at $37.50 on 12/31.\n";
    let (status, answer) = ask(
        "/translate",
        &json!({ "inputs": text, "src_lang": "English", "tgt_lang": "fr" }),
    )
    .await;
    assert_eq!(status, StatusCode::OK);
    insta::assert_json_snapshot!(answer, @r#"
    {
      "model": "two",
      "translations": [
        {
          "src_lang": "eng_Latn",
          "text": "The cat sits. The dog sleeps!\n\n  She sold 1,250 shares at $37.50 on 12/31.\n",
          "tgt_lang": "fra_Latn",
          "truncated": false
        }
      ],
      "usage": {
        "input_tokens": 50,
        "output_tokens": 50
      }
    }
    "#);
    let (_, of_two) = ask(
        "/translate",
        &json!({ "inputs": ["The cat.", " "], "src_lang": "en", "tgt_lang": "pt" }),
    )
    .await;
    assert_eq!(
        of_two["model"], "all",
        "the first model with both languages"
    );
    assert_eq!(of_two["translations"][1]["text"], " ");
    assert_eq!(of_two["translations"][0]["tgt_lang"], "por_Latn");
    let beams = json!({ "num_beams": 2, "num_return_sequences": 2 });
    let (_, several) = ask(
        "/translate",
        &json!({ "inputs": "The cat.", "src_lang": "en", "tgt_lang": "fr", "generate_parameters": beams }),
    )
    .await;
    let best = &several["translations"][0];
    assert_eq!(
        (
            &best["alternatives"][0]["text"],
            best["alternatives"].as_array().unwrap().len()
        ),
        (&json!("The cat."), 2)
    );
    assert_eq!(best["alternatives"][0]["score"], best["score"]);
}

#[tokio::test]
async fn a_sentence_that_is_too_long_is_cut_between_words_or_reported() {
    let long = "the cat and ".repeat(12);
    let ask_long = async |more: Value| {
        let mut body = json!({ "inputs": long, "src_lang": "en", "tgt_lang": "fr" });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        ask("/translate", &body).await
    };
    let (_, split) = ask_long(json!({})).await;
    assert_eq!(
        split["translations"][0]["text"].as_str().unwrap(),
        long,
        "all of it comes back"
    );
    assert_eq!(split["translations"][0]["truncated"], false);
    let (_, cut) = ask_long(json!({ "split": "never" })).await;
    assert_eq!(cut["translations"][0]["truncated"], true);
    assert!(cut["translations"][0]["text"].as_str().unwrap().len() < long.len() / 2);
    let (status, refused) = ask_long(json!({ "split": "never", "truncate": false })).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    insta::assert_snapshot!(refused["error"].as_str().unwrap(), @"the text has 50 tokens, but the model takes at most 24 tokens; set `split` or `truncate`");
    // The same in the hub's format.
    let longest = json!({ "src_lang": "en", "tgt_lang": "fr", "truncation": "longest_first" });
    let (_, hub) = ask(
        "/models/two",
        &json!({ "inputs": long, "parameters": longest }),
    )
    .await;
    assert_eq!(hub[0]["translation_text"], cut["translations"][0]["text"]);
}

#[tokio::test]
async fn languages_are_required() {
    let hub = async |parameters: Value| refusal("/models/all", cat(&parameters)).await;
    insta::assert_snapshot!(hub(json!({})).await, @"422: expected the languages of the translation in `src_lang` and `tgt_lang`, but found neither");
    insta::assert_snapshot!(hub(json!({ "src_lang": "en" })).await, @"422: expected `tgt_lang` in addition to `src_lang`, but found none");
    insta::assert_snapshot!(hub(json!({ "tgt_lang": "fr" })).await, @"422: expected `src_lang` in addition to `tgt_lang`, but found none");
    insta::assert_snapshot!(hub(json!({ "src_lang": "en", "tgt_lang": "Portugese" })).await, @"422: expected a language of the model in `tgt_lang`, but found `Portugese`; the nearest is `por_Latn` (portuguese)");
    insta::assert_snapshot!(hub(json!({ "src_lang": "en", "tgt_lang": "tlh" })).await, @"422: expected a language of the model in `tgt_lang`, but found `tlh`; it has `deu_Latn`, `eng_Latn`, `fra_Latn`, `por_Latn`, `zho_Hans`, `zho_Hant`");
    insta::assert_snapshot!(hub(json!({ "src_lang": "en", "tgt_lang": "zh" })).await, @"422: expected one language in `tgt_lang`, but `zh` means `zho_Hans`, `zho_Hant`");
    insta::assert_snapshot!(hub(json!({ "src_lang": 7 })).await, @"422: expected `parameters.src_lang` to be a string, but found `7`");
    let own = json!({ "inputs": "The cat.", "src_lang": "en", "tgt_lang": "Klingon" });
    insta::assert_snapshot!(refusal("/translate", own).await, @"422: expected a language of the models in `tgt_lang`, but found `Klingon`; they have `deu_Latn`, `eng_Latn`, `fra_Latn`, `por_Latn`, `zho_Hans`, `zho_Hant`");
    let none = json!({ "inputs": "The cat.", "src_lang": "de", "tgt_lang": "Porto" });
    insta::assert_snapshot!(refusal("/translate", none).await, @"422: expected a language of the models in `tgt_lang`, but found `Porto`; they have `deu_Latn`, `eng_Latn`, `fra_Latn`, `por_Latn`, `zho_Hans`, `zho_Hant`");
    let other = json!({ "inputs": "The cat.", "model": "two", "src_lang": "en", "tgt_lang": "pt" });
    insta::assert_snapshot!(refusal("/translate", other).await, @"422: expected a language of the model in `tgt_lang`, but found `pt`; it has `eng_Latn`, `fra_Latn`");
}

#[tokio::test]
async fn tokens_are_those_that_the_encoder_reads() {
    let asked = |more: Value| {
        let mut body = json!({ "model": "two", "inputs": "the cat" });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body
    };
    let tokens = async |more: Value| -> Vec<(String, Value, Value)> {
        let (status, tokens) = ask("/tokenize", &asked(more)).await;
        assert_eq!(status, StatusCode::OK, "{tokens}");
        let token = |token: &Value| {
            (
                token["text"].as_str().unwrap().to_owned(),
                token["special"].clone(),
                token["start"].clone(),
            )
        };
        tokens[0].as_array().unwrap().iter().map(token).collect()
    };
    let own = tokens(json!({ "add_special_tokens": false })).await;
    assert!(
        !own.is_empty()
            && own
                .iter()
                .all(|(_, special, start)| *special == false && start.is_u64()),
        "{own:?}"
    );
    for name in ["French", "fra_Latn"] {
        let all = tokens(json!({ "src_lang": name })).await;
        let added = |text: &str| (text.to_owned(), json!(true), Value::Null);
        assert_eq!(
            all,
            [vec![added("fra_Latn")], own.clone(), vec![added("</s>")]].concat()
        );
    }
    insta::assert_snapshot!(refusal("/tokenize", asked(json!({}))).await, @"422: `src_lang` is missing: a special token depends on the language; set it, or set `add_special_tokens` to false");
}

#[tokio::test]
async fn contradictory_and_invalid_options_are_refused_before_work_starts() {
    let generate = async |parameters: Value| {
        let parameters =
            json!({ "src_lang": "en", "tgt_lang": "fr", "generate_parameters": parameters });
        refusal("/models/two", cat(&parameters)).await
    };
    insta::assert_snapshot!(generate(json!({ "num_beams": 2, "num_return_sequences": 3 })).await, @"422: expected `num_return_sequences` of at most `num_beams`, which is 2, but found 3");
    insta::assert_snapshot!(generate(json!({ "min_new_tokens": 9, "max_new_tokens": 8 })).await, @"422: expected a minimum length of at most `max_new_tokens`, which is 8, but found 9");
    insta::assert_snapshot!(generate(json!({ "max_new_tokens": 1_000_000 })).await, @"422: expected `max_new_tokens` of 1 to 64, but found 1000000");
    insta::assert_snapshot!(generate(json!({ "num_beams": 1_000_000 })).await, @"422: expected `num_beams` of 1 to 64, but found 1000000");
    insta::assert_snapshot!(generate(json!({ "num_beams": -1 })).await, @"422: expected `parameters.generate_parameters.num_beams` to be an integer from 0 on, but found `-1`");
    insta::assert_snapshot!(generate(json!({ "early_stopping": "sometimes" })).await, @r#"422: wrong value in `parameters.generate_parameters.early_stopping`: expected true, false or "never""#);
    insta::assert_snapshot!(generate(json!({ "beams": 2 })).await, @"422: unknown field `parameters.generate_parameters.beams`; known fields: `max_length`, `max_new_tokens`, `min_length`, `min_new_tokens`, `num_beams`, `num_return_sequences`, `length_penalty`, `early_stopping`, `no_repeat_ngram_size`, `repetition_penalty`, `bad_words_ids`, `suppress_tokens`, `begin_suppress_tokens`, `decoder_start_token_id`, `forced_bos_token_id`, `forced_eos_token_id`, `renormalize_logits`, `do_sample`, `temperature`, `top_k`, `top_p`, `min_p`, `typical_p`, `epsilon_cutoff`, `eta_cutoff`, `seed`");
    let french = token(&tokenizer(), "fra_Latn");
    assert_eq!(
        generate(json!({ "forced_bos_token_id": 10 })).await,
        format!(
            "422: expected no `forced_bos_token_id` or {french}, the token of the target language, but found 10"
        )
    );
    let mixed = json!({ "inputs": "the cat", "source": "fr", "target": "en" });
    insta::assert_snapshot!(refusal("/translate", mixed).await, @"422: `source` and `inputs` belong to different forms of the request, but found both; LibreTranslate's form has `q`, `source` and `target`, Kivu's own `inputs`, `src_lang` and `tgt_lang`");
    let mixed = json!({ "q": "the cat", "inputs": "the dog", "source": "en", "target": "fr" });
    assert!(
        refusal("/translate", mixed)
            .await
            .starts_with("422: `inputs` and `q` belong to different forms")
    );
    let other = json!({ "text": "the cat", "source": "en", "target": "fr" });
    insta::assert_snapshot!(refusal("/translate", other).await, @"422: `text` is not supported: use `q`");
    let none = json!({ "source": "en", "target": "fr" });
    insta::assert_snapshot!(refusal("/translate", none).await, @"422: expected the field `q`, but found none");
    let both = json!({ "src_lang": "en", "tgt_lang": "fr", "truncate": true, "truncation": "do_not_truncate" });
    insta::assert_snapshot!(refusal("/models/two", cat(&both)).await, @"422: `truncation` and `truncate` have different values; leave one of them out");
    let empty = json!({ "inputs": "", "src_lang": "en", "tgt_lang": "fr" });
    insta::assert_snapshot!(refusal("/translate", empty).await, @"422: expected a text in `inputs`, but found an empty one");
    insta::assert_snapshot!(refusal("/translate", json!({ "src_lang": "en" })).await, @"422: expected the field `inputs`, but found none");
    let none = json!({ "inputs": [], "src_lang": "en", "tgt_lang": "fr" });
    insta::assert_snapshot!(refusal("/translate", none).await, @"422: expected 1 to 8 `inputs`, but found 0");
    let split = json!({ "inputs": "a", "src_lang": "en", "tgt_lang": "fr", "split": "often" });
    insta::assert_snapshot!(refusal("/translate", split).await, @"422: expected `split` to be one of `sentences`, `when-long`, `never`, but found another value");
}

#[tokio::test]
async fn a_million_characters_are_too_many_sentences() {
    let started = std::time::Instant::now();
    let text = "The cat sits on the mat. ".repeat(40_000);
    let body = json!({ "inputs": text, "src_lang": "en", "tgt_lang": "fr" });
    insta::assert_snapshot!(refusal("/translate", body).await, @"413: expected at most 8 sentences in all texts, but found more; send fewer or shorter texts");
    let word = json!({ "inputs": "x".repeat(1_000_000), "src_lang": "en", "tgt_lang": "fr" });
    let (status, answer) = ask("/translate", &word).await;
    assert_eq!(
        (status, &answer["translations"][0]["truncated"]),
        (StatusCode::OK, &json!(true))
    );
    let whole = json!({ "inputs": text, "src_lang": "en", "tgt_lang": "fr", "split": "never", "truncate": false });
    insta::assert_snapshot!(refusal("/translate", whole).await, @"413: the text has 999999 bytes, but the model takes at most 24 tokens; set `split` or `truncate`");
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_decoder_that_never_ends_is_bounded_by_length_and_by_time() {
    let endless = json!({ "inputs": "The cat.", "src_lang": "German", "tgt_lang": "fr" });
    let (status, answer) = ask("/translate", &endless).await;
    assert_eq!(
        (status, &answer["usage"]["output_tokens"]),
        (StatusCode::OK, &json!(39))
    );
    let hasty = Limits {
        timeout_ms: 40,
        ..limits()
    };
    let (status, answer) = ask_with(hasty, "/translate", &endless).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    insta::assert_snapshot!(answer["error"].as_str().unwrap(), @"no response within 40ms");
}

#[tokio::test]
async fn kserve_translates_ids_and_texts() {
    let tokenizer = tokenizer();
    let ids = |text: &str| tokenizer.ids(text).unwrap();
    let row = [ids("eng_Latn"), ids("The cat sits."), vec![2]].concat();
    let length = row.len();
    let (rows, mask) = (
        [row.clone(), [&row[..2], &vec![1; length - 2]].concat()].concat(),
        [vec![1; length], [vec![1; 2], vec![0; length - 2]].concat()].concat(),
    );
    let input = |name: &str, data: &[u32]| json!({ "name": name, "shape": [2, length], "datatype": "INT64", "data": data });
    let body = json!({
        "inputs": [input("input_ids", &rows), input("attention_mask", &mask)],
        "parameters": { "tgt_lang": "fra_Latn" },
    });
    let (status, answer) = ask("/v2/models/all/infer", &body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let output = &answer["outputs"][0];
    assert_eq!(
        (&output["name"], &output["datatype"]),
        (&json!("generated_indices"), &json!("INT64"))
    );
    let french = ids("fra_Latn")[0];
    let expected: Vec<u32> = [&[START as u32, french], &row[1..]].concat();
    let first: Vec<u32> =
        serde_json::from_value(json!(&output["data"].as_array().unwrap()[..expected.len()]))
            .unwrap();
    assert_eq!(first, expected);
    assert_eq!(output["shape"], json!([2, expected.len()]));
    assert_eq!(
        output["data"][2 * expected.len() - 1],
        1,
        "the shorter row is padded"
    );

    let text = json!({
        "inputs": [{ "name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["The cat sits."] }],
        "parameters": { "src_lang": "en", "tgt_lang": "fr", "num_beams": 2 },
    });
    let (_, answer) = ask("/v2/models/all/infer", &text).await;
    insta::assert_json_snapshot!(answer, @r#"
    {
      "model_name": "all",
      "model_version": "1",
      "outputs": [
        {
          "data": [
            "The cat sits."
          ],
          "datatype": "BYTES",
          "name": "translation",
          "shape": [
            1,
            1
          ]
        }
      ]
    }
    "#);
    let request = Request::get("/v2/models/all").body(Body::empty()).unwrap();
    let (_, metadata) = self::answer(app_with(limits()).oneshot(request).await.unwrap()).await;
    insta::assert_snapshot!(metadata["outputs"], @r#"[{"datatype":"INT64","name":"generated_indices","shape":[-1,-1]},{"datatype":"BYTES","name":"translation","shape":[-1,-1]}]"#);
    let beyond = json!({
        "inputs": [{ "name": "input_ids", "shape": [1, 1], "datatype": "INT64", "data": [99999] }],
    });
    insta::assert_snapshot!(refusal("/v2/models/all/infer", beyond).await, @"400: expected token ids below 604, but found 99999 in row 0");
}

#[tokio::test]
async fn libre_translate_and_deepl_have_the_translations_of_kivu() {
    let own = json!({ "inputs": ["cat", "dog"], "src_lang": "en", "tgt_lang": "fr" });
    let (_, own) = ask("/translate", &own).await;
    let [cat, dog] = [0, 1].map(|text| own["translations"][text]["text"].clone());
    let libre = json!({ "q": ["cat", "dog"], "source": "en", "target": "fr", "format": "text" });
    assert_eq!(
        ask("/translate", &libre).await.1,
        json!({ "translatedText": [cat, dog] })
    );
    // Kivu's own alternatives begin with the translation, and beams may have the same text.
    let beams = json!({ "num_beams": 10, "num_return_sequences": 10 });
    let own = json!({ "inputs": "cat", "src_lang": "en", "tgt_lang": "fr", "generate_parameters": beams });
    let (_, own) = ask("/translate", &own).await;
    let mut different: Vec<&Value> = Vec::new();
    for beam in own["translations"][0]["alternatives"].as_array().unwrap() {
        if !different.contains(&&beam["text"]) {
            different.push(&beam["text"]);
        }
    }
    let libre = json!({ "q": "cat", "source": "en", "target": "fr", "alternatives": 9 });
    let (_, answer) = ask("/translate", &libre).await;
    assert_eq!(
        answer,
        json!({ "translatedText": different[0], "alternatives": different[1..] })
    );
    let null =
        json!({ "inputs": "cat", "src_lang": "en", "tgt_lang": "fr", "q": null, "source": null });
    let (_, answer) = ask("/translate", &null).await;
    assert_eq!(answer["translations"][0]["text"], cat);
    let deepl = json!({ "text": ["cat", "dog"], "source_lang": "EN", "target_lang": "FR", "split_sentences": "0" });
    let (_, answer) = ask("/v2/translate", &deepl).await;
    let translation =
        |text| json!({ "detected_source_language": "EN", "text": text, "billed_characters": 3 });
    assert_eq!(
        answer,
        json!({ "translations": [translation(&cat), translation(&dog)] })
    );

    let lines = json!({ "text": ["cat"], "target_lang": "FR", "split_sentences": "nonewlines" });
    let (status, refusal) = ask("/v2/translate", &lines).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    insta::assert_snapshot!(refusal["message"].as_str().unwrap(), @"expected `split_sentences` `0` or `1`, but found another value; leave it out");

    // Forms, in which a field may occur several times.
    let form = |path: &str, body: &'static str| {
        let request = Request::post(path).header(
            "content-type",
            "application/x-www-form-urlencoded; charset=utf-8",
        );
        app_with(limits()).oneshot(request.body(Body::from(body)).unwrap())
    };
    let (_, found) = answer_of(form(
        "/v2/translate",
        "text=cat&text=dog&target_lang=FR&source_lang=EN",
    ))
    .await;
    assert_eq!(found, answer);
    let (_, found) = answer_of(form(
        "/translate",
        "q=cat&source=en&target=fr&format=text&api_key=",
    ))
    .await;
    assert_eq!(found, json!({ "translatedText": cat }));

    let get = async |path: &str| {
        let request = Request::get(path).body(Body::empty()).unwrap();
        answer_of(app_with(limits()).oneshot(request)).await.1
    };
    let languages = get("/languages").await;
    assert_eq!(
        languages[0],
        json!({ "code": "de", "name": "German", "targets": ["en", "fr", "pt", "zho_Hans", "zho_Hant"] })
    );
    assert_eq!(
        get("/v2/languages").await[1],
        json!({ "language": "EN", "name": "English" })
    );
    let targets = get("/v2/languages?type=target").await;
    assert_eq!(
        targets[1],
        json!({ "language": "EN", "name": "English", "supports_formality": false })
    );

    let mut errors = Vec::new();
    for (path, body) in [
        (
            "/translate",
            json!({ "q": "cat", "source": "auto", "target": "fr" }),
        ),
        ("/translate", json!({ "q": "cat", "source": "en" })),
        (
            "/translate",
            json!({ "q": "<b>cat</b>", "source": "en", "target": "fr", "format": "html" }),
        ),
        (
            "/translate",
            json!({ "q": "cat", "source": "en", "target": "fr", "alternatives": 100 }),
        ),
        (
            "/translate",
            json!({ "q": "cat", "source": "tlh", "target": "fr" }),
        ),
        (
            "/v2/translate",
            json!({ "text": "cat", "target_lang": "FR" }),
        ),
        (
            "/v2/translate",
            json!({ "text": "cat", "target_lang": "FR", "tag_handling": "xml" }),
        ),
        (
            "/v2/translate",
            json!({ "text": "cat", "target_lang": "FR", "formality": "more" }),
        ),
    ] {
        let (status, body) = ask(path, &body).await;
        errors.push(format!("{status} {body}"));
    }
    insta::assert_snapshot!(errors.join("\n"), @r#"
    422 Unprocessable Entity {"error":"`source` is missing: no served model identifies languages; there are 6 of them, such as `de`, `en`, `fr`, `pt`, `zho_Hans`, `zho_Hant`","error_type":"Validation"}
    422 Unprocessable Entity {"error":"expected a language in `target`, but found none","error_type":"Validation"}
    422 Unprocessable Entity {"error":"`format` is not supported: send texts without tags","error_type":"Validation"}
    422 Unprocessable Entity {"error":"expected `alternatives` from 0 to 9, but found another value","error_type":"Validation"}
    422 Unprocessable Entity {"error":"expected a language of the models in `source`, but found `tlh`; they have `deu_Latn`, `eng_Latn`, `fra_Latn`, `por_Latn`, `zho_Hans`, `zho_Hant`","error_type":"Validation"}
    422 Unprocessable Entity {"message":"`source_lang` is missing: no served model identifies languages; there are 6 of them, such as `de`, `en`, `fr`, `pt`, `zho_Hans`, `zho_Hant`"}
    422 Unprocessable Entity {"message":"`tag_handling` is not supported: send texts without tags"}
    422 Unprocessable Entity {"message":"`formality` is not supported: send `default`, `prefer_more` or `prefer_less`"}
    "#);
}

async fn answer_of(
    response: impl Future<Output = Result<Response<Body>, std::convert::Infallible>>,
) -> (StatusCode, Value) {
    answer(response.await.unwrap()).await
}
