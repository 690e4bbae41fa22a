//! Rows and their values in JSON.

use std::sync::Arc;

use arrow_array::{
    Array, ArrowPrimitiveType, RecordBatch, StringArray,
    cast::AsArray,
    types::{
        Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
        UInt8Type, UInt16Type, UInt32Type, UInt64Type,
    },
};
use arrow_schema::DataType;
use kivu::Result;
use kivu_jobs::rows::{ParquetRows, mismatched};
use serde_json::{Number, Value};

use crate::text::{text, with_texts};

/// Rows as columns.
pub struct Batch(pub RecordBatch);

impl ParquetRows for Batch {
    fn value(&self, place: usize, row: usize) -> Option<Value> {
        cell(self.0.column(place).as_ref(), row)
    }

    fn row(&self, row: usize) -> Box<dyn ParquetRows> {
        Box::new(Self(self.0.slice(row, 1)))
    }

    fn with_texts(&self, place: usize, texts: Vec<Option<String>>) -> Result<Box<dyn ParquetRows>> {
        let mut columns = self.0.columns().to_vec();
        columns[place] = Arc::new(StringArray::from(texts));
        let schema = with_texts(&self.0.schema(), place);
        let batch = RecordBatch::try_new(schema, columns).or_else(|_| mismatched())?;
        Ok(Box::new(Self(batch)))
    }
}

/// A value in a column whose type has a JSON form; `None` for infinities, which have none.
fn cell(column: &dyn Array, row: usize) -> Option<Value> {
    if column.is_null(row) {
        return Some(Value::Null);
    }
    Some(match column.data_type() {
        DataType::Boolean => column.as_boolean().value(row).into(),
        DataType::Int8 => integer::<Int8Type>(column, row),
        DataType::Int16 => integer::<Int16Type>(column, row),
        DataType::Int32 => integer::<Int32Type>(column, row),
        DataType::Int64 => integer::<Int64Type>(column, row),
        DataType::UInt8 => integer::<UInt8Type>(column, row),
        DataType::UInt16 => integer::<UInt16Type>(column, row),
        DataType::UInt32 => integer::<UInt32Type>(column, row),
        DataType::UInt64 => integer::<UInt64Type>(column, row),
        DataType::Float16 => float(column.as_primitive::<Float16Type>().value(row).into())?,
        DataType::Float32 => float(column.as_primitive::<Float32Type>().value(row).into())?,
        DataType::Float64 => float(column.as_primitive::<Float64Type>().value(row))?,
        DataType::List(_) => items(column.as_list::<i32>().value(row).as_ref())?,
        DataType::LargeList(_) => items(column.as_list::<i64>().value(row).as_ref())?,
        DataType::FixedSizeList(..) => items(column.as_fixed_size_list().value(row).as_ref())?,
        _ => text(column, row).map_or(Value::Null, Value::from),
    })
}

fn items(list: &dyn Array) -> Option<Value> {
    let items: Option<Vec<_>> = (0..list.len()).map(|item| cell(list, item)).collect();
    items.map(Value::from)
}

fn integer<T: ArrowPrimitiveType>(column: &dyn Array, row: usize) -> Value
where
    Value: From<T::Native>,
{
    column.as_primitive::<T>().value(row).into()
}

/// NaN is null, which data frames write in its place.
fn float(value: f64) -> Option<Value> {
    match value.is_nan() {
        true => Some(Value::Null),
        false => Number::from_f64(value).map(Value::Number),
    }
}
