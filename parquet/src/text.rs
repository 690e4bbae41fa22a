//! Texts, read as bytes and checked row by row: one value that is not UTF-8 must not cost the file.

use std::{str, sync::Arc};

use arrow_array::{
    Array, LargeStringArray, StringArray, StringViewArray, cast::AsArray, make_array,
};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType, FieldRef, Schema, SchemaRef};
use parquet::{
    basic::{ConvertedType, LogicalType},
    errors::Result as ParquetResult,
    schema::types::{SchemaDescriptor, Type, TypePtr},
};

/// Whether a column of this type has texts.
pub fn holds_text(found: &DataType) -> bool {
    match found {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => holds_text(values),
        _ => false,
    }
}

/// The schema with texts in the column at `place`.
pub fn with_texts(schema: &Schema, place: usize) -> SchemaRef {
    let mut fields: Vec<FieldRef> = schema.fields().iter().cloned().collect();
    let texts = fields[place].as_ref().clone();
    fields[place] = Arc::new(texts.with_data_type(DataType::Utf8).with_nullable(true));
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// A column's texts; `None` for a row without one.
pub fn texts(column: &dyn Array) -> impl Iterator<Item = Option<&str>> {
    (0..column.len()).map(move |row| text(column, row))
}

/// A row's text. Of a dictionary, which may have as many values as a file has rows, one is read.
pub fn text(column: &dyn Array, row: usize) -> Option<&str> {
    if column.is_null(row) {
        return None;
    }
    if let Some(column) = column.as_string_opt::<i32>() {
        return Some(column.value(row));
    }
    if let Some(column) = column.as_string_opt::<i64>() {
        return Some(column.value(row));
    }
    if let Some(column) = column.as_string_view_opt() {
        return Some(column.value(row));
    }
    let values = column.as_any_dictionary_opt()?.values();
    let one = column.slice(row, 1);
    let keys = one.as_any_dictionary_opt().filter(|_| !values.is_empty())?;
    text(values, keys.normalized_keys().first().copied()?)
}

/// The type of a text's bytes; other types stay.
pub fn bytes_of_text(found: &DataType) -> DataType {
    match found {
        DataType::Utf8 => DataType::Binary,
        DataType::LargeUtf8 => DataType::LargeBinary,
        DataType::Utf8View => DataType::BinaryView,
        DataType::Dictionary(keys, values) => {
            DataType::Dictionary(keys.clone(), Box::new(bytes_of_text(values)))
        }
        other => other.clone(),
    }
}

/// A file's schema without the annotations that make bytes texts, and integers times.
pub fn stored_bytes(schema: &SchemaDescriptor) -> ParquetResult<Arc<SchemaDescriptor>> {
    let root = without_annotations(&schema.root_schema_ptr())?;
    Ok(Arc::new(SchemaDescriptor::new(root)))
}

fn without_annotations(found: &TypePtr) -> ParquetResult<TypePtr> {
    let info = found.get_basic_info();
    let id = info.has_id().then(|| info.id());
    if found.is_group() {
        let fields = found.get_fields().iter().map(without_annotations);
        let mut group = Type::group_type_builder(info.name())
            .with_fields(fields.collect::<ParquetResult<_>>()?)
            .with_converted_type(info.converted_type())
            .with_logical_type(info.logical_type_ref().cloned())
            .with_id(id);
        if info.has_repetition() {
            group = group.with_repetition(info.repetition());
        }
        return group.build().map(Arc::new);
    }
    let is_annotated = matches!(
        info.logical_type_ref(),
        Some(LogicalType::String | LogicalType::Json | LogicalType::Timestamp(_))
    ) || matches!(
        info.converted_type(),
        ConvertedType::UTF8
            | ConvertedType::JSON
            | ConvertedType::TIMESTAMP_MILLIS
            | ConvertedType::TIMESTAMP_MICROS
    );
    if !is_annotated {
        return Ok(Arc::clone(found));
    }
    Type::primitive_type_builder(info.name(), found.get_physical_type())
        .with_repetition(info.repetition())
        .with_id(id)
        .build()
        .map(Arc::new)
}

/// An array of the type `target` from one whose texts are bytes, and whether it had bytes that are not UTF-8, which become
/// U+FFFD.
pub fn text_of_bytes(data: ArrayData, target: &DataType) -> Result<(ArrayData, bool), ArrowError> {
    if data.data_type() == target {
        return Ok((data, false));
    }
    let mut is_replaced = false;
    let types: Vec<&DataType> = match target {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            let text = data.clone().into_builder().data_type(target.clone());
            return match text.build() {
                Ok(text) => Ok((text, false)),
                Err(_) => Ok((replaced(data, target), true)),
            };
        }
        DataType::Dictionary(_, values) => vec![values],
        DataType::Struct(fields) => fields.iter().map(|field| field.data_type()).collect(),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => vec![item.data_type()],
        _ => Vec::new(),
    };
    let mut children = Vec::with_capacity(types.len());
    for (child, target) in data.child_data().iter().zip(types) {
        let (child, has_replaced) = text_of_bytes(child.clone(), target)?;
        is_replaced |= has_replaced;
        children.push(child);
    }
    let array = data
        .into_builder()
        .data_type(target.clone())
        .child_data(children)
        .build()?;
    Ok((array, is_replaced))
}

/// Texts from bytes that are not all UTF-8.
fn replaced(data: ArrayData, target: &DataType) -> ArrayData {
    let array = make_array(data);
    let texts = (0..array.len()).map(|row| bytes(&array, row).map(String::from_utf8_lossy));
    match target {
        DataType::LargeUtf8 => texts.collect::<LargeStringArray>().into_data(),
        DataType::Utf8View => texts.collect::<StringViewArray>().into_data(),
        _ => texts.collect::<StringArray>().into_data(),
    }
}

/// A row's bytes; `None` for null.
fn bytes(column: &dyn Array, row: usize) -> Option<&[u8]> {
    if column.is_null(row) {
        return None;
    }
    if let Some(column) = column.as_binary_opt::<i32>() {
        return Some(column.value(row));
    }
    if let Some(column) = column.as_binary_opt::<i64>() {
        return Some(column.value(row));
    }
    Some(column.as_binary_view_opt()?.value(row))
}

/// The first byte in a row that is not UTF-8, where the type `target` has texts.
pub fn invalid_byte(column: &dyn Array, row: usize, target: &DataType) -> Option<u8> {
    if column.is_null(row) {
        return None;
    }
    let in_items = |items: &dyn Array, target: &DataType| {
        (0..items.len()).find_map(|item| invalid_byte(items, item, target))
    };
    match target {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            let bytes = bytes(column, row)?;
            let error = str::from_utf8(bytes).err()?;
            bytes.get(error.valid_up_to()).copied()
        }
        DataType::Dictionary(_, values) => {
            let dictionary = column.as_any_dictionary_opt()?;
            let key = dictionary.normalized_keys().get(row).copied()?;
            invalid_byte(dictionary.values(), key, values)
        }
        DataType::Struct(fields) => {
            let mut columns = fields.iter().zip(column.as_struct_opt()?.columns());
            columns.find_map(|(field, column)| invalid_byte(column, row, field.data_type()))
        }
        DataType::List(item) => {
            in_items(&column.as_list_opt::<i32>()?.value(row), item.data_type())
        }
        DataType::LargeList(item) => {
            in_items(&column.as_list_opt::<i64>()?.value(row), item.data_type())
        }
        DataType::ListView(item) => in_items(
            &column.as_list_view_opt::<i32>()?.value(row),
            item.data_type(),
        ),
        DataType::LargeListView(item) => in_items(
            &column.as_list_view_opt::<i64>()?.value(row),
            item.data_type(),
        ),
        DataType::FixedSizeList(item, _) => in_items(
            &column.as_fixed_size_list_opt()?.value(row),
            item.data_type(),
        ),
        DataType::Map(entries, _) => {
            in_items(&column.as_map_opt()?.value(row), entries.data_type())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use arrow_array::{
        ArrayRef, DictionaryArray,
        types::{Int8Type, Int32Type},
    };

    use super::*;

    #[test]
    fn texts_of_all_types_are_read() {
        let rows = [Some("a"), None, Some("b"), Some("a")];
        let none = [None, None];
        let columns: [ArrayRef; 4] = [
            Arc::new(StringArray::from_iter(rows)),
            Arc::new(LargeStringArray::from_iter(rows)),
            Arc::new(StringViewArray::from_iter(rows)),
            Arc::new(DictionaryArray::<Int8Type>::from_iter(rows)),
        ];
        for column in columns {
            assert!(holds_text(column.data_type()));
            assert_eq!(
                texts(&column).collect::<Vec<_>>(),
                rows,
                "{}",
                column.data_type()
            );
        }
        let sliced: DictionaryArray<Int8Type> = rows.into_iter().collect();
        assert_eq!(texts(&sliced.slice(1, 2)).collect::<Vec<_>>(), rows[1..3]);
        // A row does not read the whole dictionary, which takes 40 s in all.
        let rows: Vec<String> = (0..20_000).map(|row| row.to_string()).collect();
        let large: DictionaryArray<Int32Type> = rows.iter().map(|row| Some(row.as_str())).collect();
        let begin = Instant::now();
        assert!(texts(&large).eq(rows.iter().map(|row| Some(row.as_str()))));
        assert!(begin.elapsed() < Duration::from_secs(5));
        let empty: DictionaryArray<Int8Type> = none.into_iter().collect();
        assert_eq!(texts(&empty).collect::<Vec<_>>(), none);
    }
}
