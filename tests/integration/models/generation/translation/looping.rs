//! The decode loop on misbehaving and instrumented decoders.

use std::{sync::mpsc, time::Duration};

use kivu::{
    Error, Result,
    backend::{
        Deadline,
        seq2seq::{Decoder, Seq2SeqBackend, SourceBatch},
    },
    pipeline::generation::{
        Bounds, Generated, GenerationConfig, GenerationOptions, GenerationSettings, SourceInfo,
        generate,
    },
};
use serde_json::{Value, json};

use kivu::backend::scripted::ScriptedSeq2Seq;

const END: i64 = 0;
const START: i64 = 5;

fn search(options: Value) -> GenerationConfig {
    let settings = GenerationSettings {
        decoder_start_token_id: START,
        eos_token_ids: vec![END],
        pad_token_id: 1,
        length_factor: None,
        defaults: GenerationOptions::default(),
    };
    let options = serde_json::from_value(options).unwrap();
    GenerationConfig::new(
        &settings,
        &options,
        Bounds {
            vocabulary: 6,
            max_length: 5000,
        },
    )
    .unwrap()
}

async fn run(
    decoder: &ScriptedSeq2Seq,
    sources: &[Vec<i64>],
    search: GenerationConfig,
    deadline: Deadline,
) -> Result<Vec<Vec<Generated>>> {
    let (sender, receiver) = mpsc::channel();
    let list: Vec<SourceInfo> = sources
        .iter()
        .enumerate()
        .map(|(number, source)| SourceInfo {
            length: source.len(),
            number,
        })
        .collect();
    let work = Box::new(move |decoder: &mut dyn Decoder| {
        sender
            .send(generate(decoder, &list, &search, deadline)?)
            .unwrap();
        Ok(())
    });
    decoder
        .decode(
            SourceBatch {
                rows: sources.to_vec(),
                pad: 1,
                shortlist: None,
            },
            deadline,
            work,
        )
        .await?;
    Ok(receiver.recv().unwrap())
}

fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(30))
}

/// Generates the token 3 as often as the source requires, then ends.
fn counting() -> ScriptedSeq2Seq {
    ScriptedSeq2Seq::new(6, |source, target| {
        let continues = (target.len() as i64) <= source[0];
        let mut scores = vec![0.0, 0.0, 1.0, 2.0, 1.5, 0.0];
        scores[if continues { 3 } else { 0 }] = 9.0;
        scores
    })
}

#[tokio::test]
async fn finished_rows_leave_the_batch() {
    let decoder = counting();
    let sources = [vec![3], vec![1], vec![2]];
    let found = run(&decoder, &sources, search(json!({})), soon())
        .await
        .unwrap();
    let ids: Vec<_> = found.iter().map(|texts| texts[0].ids.clone()).collect();
    assert_eq!(ids, [vec![3, 3, 3, END], vec![3, END], vec![3, 3, END]]);
    assert_eq!(decoder.steps(), [3, 3, 2, 1]);
}

#[tokio::test]
async fn beams_share_the_first_step_and_leave_together() {
    let decoder = counting();
    let sources = [vec![2], vec![1]];
    let found = run(
        &decoder,
        &sources,
        search(json!({"num_beams": 3, "early_stopping": true})),
        soon(),
    )
    .await;
    assert_eq!(found.unwrap()[0][0].ids, [3, 3, END]);
    let steps = decoder.steps();
    assert_eq!(steps[..2], [2, 6], "all beams of a source begin as one row");
    assert!(steps.iter().skip(1).all(|rows| rows % 3 == 0), "{steps:?}");
}

/// Never ends a sequence.
fn endless() -> ScriptedSeq2Seq {
    ScriptedSeq2Seq::new(6, |_, _| vec![-9.0, 0.0, 1.0, 3.0, 2.0, 0.0])
}

#[tokio::test]
async fn a_decoder_that_never_ends_is_ended() {
    for beams in [1, 4] {
        let decoder = endless();
        let search = search(json!({"num_beams": beams, "max_new_tokens": 30}));
        let found = run(&decoder, &[vec![1]], search, soon()).await.unwrap();
        assert_eq!(found[0][0].ids.len(), 30);
        assert_eq!(decoder.steps().len(), 30);
    }
}

#[tokio::test]
async fn the_deadline_is_checked_at_every_step() {
    let decoder = ScriptedSeq2Seq::new(6, |_, _| {
        std::thread::sleep(Duration::from_millis(5));
        vec![-9.0, 0.0, 1.0, 3.0, 2.0, 0.0]
    });
    let deadline = Deadline::within(Duration::from_millis(50));
    let search = search(json!({"max_new_tokens": 4000}));
    let error = run(&decoder, &[vec![1]], search, deadline)
        .await
        .unwrap_err();
    insta::assert_snapshot!(error, @"no response within 50ms");
    assert!(matches!(error, Error::DeadlineExceeded { .. }));
    assert!(decoder.steps().len() < 100);
}

#[tokio::test]
async fn invalid_logits_are_an_error() {
    for beams in [1, 2] {
        let decoder = ScriptedSeq2Seq::new(6, |_, _| vec![f32::NAN; 6]);
        let error = run(
            &decoder,
            &[vec![1]],
            search(json!({"num_beams": beams})),
            soon(),
        )
        .await
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "the model's output `logits` is not a number"
        );
    }
    let lying = ScriptedSeq2Seq::new(6, |_, _| vec![1.0; 4]);
    let error = run(&lying, &[vec![1]], search(json!({})), soon())
        .await
        .unwrap_err();
    insta::assert_snapshot!(error, @"expected `logits` of 1 rows, but found 4 values");
}

#[tokio::test]
async fn sampling_follows_the_seed_and_the_probabilities() {
    let decoder = ScriptedSeq2Seq::new(6, |_, _| vec![-50.0, -50.0, 0.0, 1.0, -50.0, -50.0]);
    let draw = async |seed: u64, beams: usize, tokens: usize| {
        let options = json!({
            "do_sample": true, "seed": seed, "num_beams": beams, "num_return_sequences": beams.max(2),
            "max_new_tokens": tokens,
        });
        run(&decoder, &[vec![1]], search(options), soon())
            .await
            .unwrap()
            .remove(0)
    };
    let [first, again, other] = [
        draw(7, 1, 400).await,
        draw(7, 1, 400).await,
        draw(8, 1, 400).await,
    ];
    assert_eq!(first, again);
    assert_ne!(first, other);
    assert_ne!(first[0].ids, first[1].ids, "each text is drawn on its own");
    // e¹ against e⁰: 73 % of 800.
    let threes = first
        .iter()
        .flat_map(|text| &text.ids)
        .filter(|id| **id == 3)
        .count();
    assert!((530..640).contains(&threes), "{threes}");
    let beams = draw(7, 3, 20).await;
    assert_eq!(beams.len(), 3);
    assert!(
        beams
            .iter()
            .all(|text| text.ids.iter().all(|id| [2, 3].contains(id)) && text.score.is_some())
    );
}
