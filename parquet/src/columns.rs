//! A file's columns.

use std::sync::Arc;

use arrow_schema::{DataType, SchemaRef};
use kivu::{Error, Result};
use kivu_jobs::{
    output::answer::Columns,
    rows::{Footer, JsonTypes, ParquetColumns, RowWriter},
};

use crate::{
    text::{holds_text, with_texts},
    writer::{ParquetWriter, join_footers},
};

/// The columns in a schema.
pub struct FileColumns(pub SchemaRef);

impl ParquetColumns for FileColumns {
    fn names(&self) -> Vec<&str> {
        let fields = self.0.fields().iter();
        fields.map(|field| field.name().as_str()).collect()
    }

    fn check(&self, place: usize, types: JsonTypes) -> Result<()> {
        let field = self.0.field(place);
        let found = field.data_type();
        let is_vector = || item_type(found).is_some_and(DataType::is_numeric);
        if has_json_form(found) || (types == JsonTypes::Vectors && is_vector()) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "expected texts, numbers or booleans in the column `{}`, but found {found}",
            field.name()
        )))
    }

    fn writer(&self, added: Columns) -> Result<Box<dyn RowWriter>> {
        Ok(Box::new(ParquetWriter::new(&self.0, added)?))
    }

    fn copier(&self, replaced: &[usize]) -> Result<Box<dyn RowWriter>> {
        let mut schema = Arc::clone(&self.0);
        for place in replaced {
            let field = self.0.field(*place);
            if !holds_text(field.data_type()) {
                return Err(Error::invalid(format!(
                    "expected texts in the column `{}`, but found {}",
                    field.name(),
                    field.data_type()
                )));
            }
            schema = with_texts(&schema, *place);
        }
        Ok(Box::new(ParquetWriter::copying(schema)?))
    }

    fn join_footers(&self, pieces: &[(u64, Footer)]) -> Result<Vec<u8>> {
        join_footers(pieces)
    }
}

fn has_json_form(found: &DataType) -> bool {
    found.is_integer()
        || holds_text(found)
        || matches!(
            found,
            DataType::Float32 | DataType::Float64 | DataType::Boolean | DataType::Null
        )
}

/// The type of a list's items.
fn item_type(list: &DataType) -> Option<&DataType> {
    match list {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            Some(item.data_type())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::{
        ArrayRef, BinaryArray, BooleanArray, DictionaryArray, Float64Array, ListArray, RecordBatch,
        StringArray, UInt64Array,
        types::{Float32Type, Int8Type},
    };
    use kivu_jobs::{
        output::answer::{ErrorKind, RowError},
        rows::{Fields, Head, Rows, failed},
    };
    use serde_json::json;

    use super::*;
    use crate::batch::Batch;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn columns_become_json() {
        let words: DictionaryArray<Int8Type> = ["x", "y"].into_iter().collect();
        let vectors = [Some([Some(1.0), Some(2.5)]), None];
        let vectors = ListArray::from_iter_primitive::<Float32Type, _, _>(vectors);
        let columns: [(&str, ArrayRef); 7] = [
            ("number", Arc::new(UInt64Array::from(vec![u64::MAX, 1]))),
            (
                "growth",
                Arc::new(Float64Array::from(vec![0.5, f64::INFINITY])),
            ),
            ("share", Arc::new(Float64Array::from(vec![0.5, f64::NAN]))),
            (
                "is_new",
                Arc::new(BooleanArray::from(vec![Some(true), None])),
            ),
            ("word", Arc::new(words)),
            ("name", Arc::new(StringArray::from(vec!["a", "b"]))),
            ("vector", Arc::new(vectors)),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let head = Head::Parquet(Arc::new(FileColumns(batch.schema())));
        let rows = Rows::Columns(Box::new(Batch(batch)));
        let found = |fields: Fields| [0, 1].map(|row| json!(fields.values(&rows, row).unwrap()));
        let scalars = names(&["number", "share", "is_new", "word", "name"]);
        assert_eq!(
            found(Fields::new(&head, scalars).unwrap()),
            [
                json!([u64::MAX, 0.5, true, "x", "a"]),
                json!([1, null, null, "y", "b"])
            ]
        );
        let vectors = Fields::with_vectors(&head, names(&["vector", "name"])).unwrap();
        assert_eq!(
            found(vectors),
            [json!([[1.0, 2.5], "a"]), json!([null, "b"])]
        );
        let growth = Fields::new(&head, names(&["growth"])).unwrap();
        assert_eq!(growth.values(&rows, 0).unwrap(), [json!(0.5)]);
        insta::assert_snapshot!(growth.values(&rows, 1).unwrap_err().message, @"expected a JSON value in `growth`, but found an infinite number");
        let refused = Fields::new(&head, names(&["vector"])).err().unwrap();
        insta::assert_snapshot!(refused, @"expected texts, numbers or booleans in the column `vector`, but found List(Float32)");
        let raw: ArrayRef = Arc::new(BinaryArray::from(vec![b"a".as_slice()]));
        let schema = RecordBatch::try_from_iter([("raw", raw)]).unwrap().schema();
        let head = Head::Parquet(Arc::new(FileColumns(schema)));
        let refused = Fields::new(&head, names(&["raw"])).err().unwrap();
        insta::assert_snapshot!(refused, @"expected texts, numbers or booleans in the column `raw`, but found Binary");
    }

    #[test]
    fn failed_rows_are_taken_one_by_one() {
        let error = || Err(RowError::new(ErrorKind::Text, "none"));
        let results = [Ok(Vec::new()), error(), Ok(Vec::new()), error()];
        let column: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "c", "d"]));
        let batch = RecordBatch::try_from_iter([("name", column)]).unwrap();
        let head = Head::Parquet(Arc::new(FileColumns(batch.schema())));
        let fields = Fields::new(&head, names(&["name"])).unwrap();
        let failed = failed(Rows::Columns(Box::new(Batch(batch))), &results);
        let values = failed.iter().map(|(rows, errors)| {
            assert_eq!(errors[..], results[1..2]);
            fields.values(rows, 0).unwrap()
        });
        assert_eq!(values.flatten().collect::<Vec<_>>(), ["b", "d"]);
    }
}
