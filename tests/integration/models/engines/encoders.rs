//! Tests the `EncoderBackend` contract.

use std::{ops::Range, time::Duration};

use kivu::{
    Error, Result,
    backend::{
        Deadline,
        encoder::{EncoderBackend, EncoderCall, Row, Sequence},
    },
    tokenizer::Encoding,
};

use crate::contract::deadline;

/// A text with these token ids.
pub(crate) fn encoding(ids: Vec<u32>) -> Encoding {
    Encoding {
        type_ids: vec![0; ids.len()],
        ids,
        ..Encoding::default()
    }
}

/// A text's values and their columns in an encoder's first output.
pub(crate) type FirstOutput = (Vec<f32>, usize);

/// Runs texts in one call, a batch each.
pub(crate) async fn run(
    encoder: &dyn EncoderBackend,
    texts: &[Encoding],
    deadline: Deadline,
) -> Result<Vec<FirstOutput>> {
    let call = EncoderCall {
        batches: texts
            .iter()
            .map(|text| vec![Sequence::from(text)])
            .collect(),
        outputs: &[0],
        padding_id: 0,
        deadline,
    };
    let mut found = vec![None; texts.len()];
    let mut each = |text: usize, rows: &[Row<'_>]| {
        let row = (rows[0].values.to_vec(), rows[0].columns);
        assert!(found[text].replace(row).is_none(), "passed on twice");
        Ok(())
    };
    encoder.run(call, &mut each).await?;
    Ok(found.into_iter().map(Option::unwrap).collect())
}

/// Tests the [`EncoderBackend`] contract.
pub(crate) async fn encoder_keeps_its_contract(encoder: &dyn EncoderBackend) {
    let texts = |lengths: Range<usize>| -> Vec<Encoding> {
        lengths.map(|length| encoding(vec![1; length])).collect()
    };
    let all = run(encoder, &texts(1..20), deadline()).await.unwrap();
    assert_eq!(all.len(), 19);
    assert!(run(encoder, &[], deadline()).await.unwrap().is_empty());

    // A deadline that has passed is exceeded.
    let passed = Deadline::within(Duration::ZERO);
    let late = run(encoder, &texts(1..2), passed).await.unwrap_err();
    assert!(matches!(late, Error::DeadlineExceeded { .. }), "{late:?}");

    // Failures do not affect later calls, and concurrent calls get their own outputs.
    let unknown = encoding(vec![u32::MAX]);
    assert!(run(encoder, &[unknown], deadline()).await.is_err());
    let many = (1..20).map(|length| async move {
        let text = encoding(vec![1; length]);
        run(encoder, &[text], deadline()).await.unwrap().remove(0)
    });
    assert_eq!(futures::future::join_all(many).await, all);
}
