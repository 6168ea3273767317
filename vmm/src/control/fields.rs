//! Which fields a type has in JSON, as serde reads it: the type is read from nothing, and what it asks for is noted.

use std::cell::RefCell;

use serde::de::value::{Error, StrDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess,
    Visitor,
};
use serde::forward_to_deserialize_any;

/// A field of a type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Where it is, as `sessions[].rings[].lost`.
    pub path: String,
    /// What it can be, if it is one of a few names.
    pub values: &'static [&'static str],
}

impl Field {
    /// Its own name.
    pub fn name(&self) -> &str {
        let name = self.path.rsplit('.').next().unwrap_or_default();
        name.trim_end_matches("[]")
    }

    /// Whether it is one of the type's own, not one of what is in it.
    pub fn is_top(&self) -> bool {
        !self.path.contains('.')
    }
}

/// The fields of `T`, each followed by those of what is in it.
pub fn fields<T: DeserializeOwned>() -> Vec<Field> {
    let found = RefCell::default();
    let read = T::deserialize(Walk {
        path: String::new(),
        without: None,
        found: &found,
    });
    assert!(
        read.is_ok(),
        "{}: {read:?}",
        std::any::type_name::<T>(),
        read = read.err()
    );
    found.into_inner()
}

/// Whether `T` can be read when this field of it is not there.
pub fn is_optional<T: DeserializeOwned>(field: &str) -> bool {
    let found = RefCell::default();
    let read = T::deserialize(Walk {
        path: String::new(),
        without: Some(field),
        found: &found,
    });
    read.is_ok()
}

/// Plays the JSON of what is at `path`.
struct Walk<'w> {
    path: String,
    /// The field that is left out.
    without: Option<&'w str>,
    found: &'w RefCell<Vec<Field>>,
}

impl<'w> Walk<'w> {
    fn at(&self, path: String) -> Walk<'w> {
        Walk { path, ..*self }
    }
}

/// A text that is a name, a path and a duration.
const TEXT: &str = "1us";
/// One that is a trigger.
const TRIGGER: &str = "f: stop";

impl<'de> Deserializer<'de> for Walk<'_> {
    type Error = Error;

    /// Numbers.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_u64(1)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bool(true)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(TEXT)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(match self.path.contains("trigger") {
            true => TRIGGER,
            false => TEXT,
        })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let path = format!("{}[]", self.path);
        visitor.visit_seq(One(Some(self.at(path))))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_map(Each {
            fields: fields.iter(),
            path: String::new(),
            of: self,
        })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if let Some(field) = self.found.borrow_mut().last_mut() {
            field.values = variants;
        }
        let first: StrDeserializer<'_, Error> = variants[0].into_deserializer();
        visitor.visit_enum(first)
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct map
        identifier ignored_any
    }
}

/// A list of one.
struct One<'w>(Option<Walk<'w>>);

impl<'de> SeqAccess<'de> for One<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        let one = self.0.take();
        one.map(|walk| seed.deserialize(walk)).transpose()
    }
}

/// An object with each of its fields.
struct Each<'w> {
    fields: std::slice::Iter<'static, &'static str>,
    /// Of the field whose value is next.
    path: String,
    of: Walk<'w>,
}

impl<'de> MapAccess<'de> for Each<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        for field in self.fields.by_ref() {
            let dot = if self.of.path.is_empty() { "" } else { "." };
            self.path = format!("{}{dot}{field}", self.of.path);
            if self.of.without != Some(self.path.as_str()) {
                self.of.found.borrow_mut().push(Field {
                    path: self.path.clone(),
                    values: &[],
                });
                let key: StrDeserializer<'_, Error> = field.into_deserializer();
                return seed.deserialize(key).map(Some);
            }
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(self.of.at(self.path.clone()))
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Side {
        Left,
        Right,
    }

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "it is only read")]
    struct Inner {
        side: Side,
        #[serde(rename = "other")]
        number: Option<f64>,
    }

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "it is only read")]
    struct Outer {
        name: String,
        #[serde(default)]
        inner: Vec<Inner>,
        last: Option<bool>,
    }

    #[test]
    fn every_field_is_found_by_its_name_in_json() {
        let found = fields::<Outer>();
        let paths: Vec<&str> = found.iter().map(|field| &*field.path).collect();
        let expected = ["name", "inner", "inner[].side", "inner[].other", "last"];
        assert_eq!(paths, expected);
        assert_eq!(found[2].values, ["left", "right"]);
        assert_eq!((found[2].name(), found[2].is_top()), ("side", false));
        let optional = ["name", "inner", "last", "inner[].side"].map(is_optional::<Outer>);
        assert_eq!(optional, [false, true, true, false]);
    }
}
