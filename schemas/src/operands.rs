//! How an operator is read: operands of any operator first, then which of them are its own.
//!
//! A parser for each operator, which serde would derive, is 36 KB of a runner that has no
//! room for them. This one reads every operand there is, and then says which one an operator
//! lacks and which one is not its own. It is as strict: nothing is unknown, missing, stated
//! twice or null.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, EnumAccess, Error, MapAccess, VariantAccess, Visitor};

use crate::program::{MlaWeights, NormWidth, Op, Register, RopePairing, RouterForm};
use crate::program::{TensorName, Yarn};
use crate::real::Real;

/// All operands with their types, then the operators with the names of theirs, which the
/// compiler compares with [`Op`].
macro_rules! operators {
    (
        { $($operand:ident: $type:ty,)* }
        $($operator:ident { $($own:ident),* })*
    ) => {
        #[derive(Deserialize)]
        #[serde(variant_identifier, rename_all = "snake_case")]
        enum Operator {
            $($operator,)*
        }

        #[derive(Deserialize)]
        #[serde(field_identifier)]
        #[expect(non_camel_case_types, reason = "the names of the operands")]
        enum Name {
            $($operand,)*
        }

        #[derive(Default)]
        struct Operands {
            $($operand: Option<$type>,)*
        }

        impl Operands {
            fn read<'de, A: MapAccess<'de>>(&mut self, name: Name, map: &mut A) -> Result<(), A::Error> {
                match name {
                    $(Name::$operand => put(&mut self.$operand, stringify!($operand), map),)*
                }
            }

            fn make<E: Error>(mut self, operator: Operator) -> Result<Op, E> {
                let op = match operator {
                    $(Operator::$operator => Op::$operator {
                        $($own: self.$own.own().ok_or_else(|| E::missing_field(stringify!($own)))?,)*
                    },)*
                };
                match self.left() {
                    None => Ok(op),
                    Some(name) => Err(E::custom(format_args!("unknown field `{name}`: no operand of this operator"))),
                }
            }

            /// An operand that is still there.
            fn left(&self) -> Option<&'static str> {
                $(if self.$operand.is_some() {
                    return Some(stringify!($operand));
                })*
                None
            }
        }
    };
}

operators! {
    {
        input: Register,
        out: Register,
        register: Register,
        q: Register,
        k: Register,
        v: Register,
        latent: Register,
        k_pe: Register,
        weight: TensorName,
        bias: TensorName,
        gate: TensorName,
        up: TensorName,
        down: TensorName,
        token_gate: TensorName,
        selection_bias: TensorName,
        weights: MlaWeights,
        scale: Real,
        eps: Real,
        theta: Real,
        heads: u64,
        kv_heads: u64,
        dims: u64,
        over: NormWidth,
        pairing: RopePairing,
        yarn: Yarn,
        form: RouterForm,
    }
    Embed { out, weight, scale }
    RmsNorm { input, out, weight, eps }
    Linear { input, out, weight, bias }
    QkNorm { register, weight, eps, heads, over }
    Rope { register, heads, dims, theta, pairing, yarn }
    Attention { q, k, v, out, heads, kv_heads, scale }
    Mla { q, latent, k_pe, out, heads, weights, scale }
    ShortConv { input, out, weight }
    Mlp { input, out, gate, up, down, token_gate }
    Router { input, weight, selection_bias, form }
    Experts { input, out }
    Add { input, out, scale }
    LmHead { input, weight, scale }
}

/// Puts the next value of `map` where none is yet.
fn put<'de, A: MapAccess<'de>, T: Deserialize<'de>>(
    place: &mut Option<T>,
    name: &'static str,
    map: &mut A,
) -> Result<(), A::Error> {
    match place.replace(map.next_value()?) {
        None => Ok(()),
        Some(_) => Err(A::Error::duplicate_field(name)),
    }
}

/// An operand that was read, taken as an operator has it.
trait Own<T> {
    /// None if the operator needs it and it was not there.
    fn own(&mut self) -> Option<T>;
}

/// One that is needed.
impl<T> Own<T> for Option<T> {
    fn own(&mut self) -> Option<T> {
        self.take()
    }
}

/// One that can be left out.
impl<T> Own<Option<T>> for Option<T> {
    fn own(&mut self) -> Option<Option<T>> {
        Some(self.take())
    }
}

impl<'de> Deserialize<'de> for Op {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Op, D::Error> {
        deserializer.deserialize_enum("Op", &[], OneMember)
    }
}

/// The object whose only member is named after the operator.
struct OneMember;

impl<'de> Visitor<'de> for OneMember {
    type Value = Op;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an operator")
    }

    fn visit_enum<A: EnumAccess<'de>>(self, member: A) -> Result<Op, A::Error> {
        let (operator, operands) = member.variant::<Operator>()?;
        operands.struct_variant(&[], ReadOperands)?.make(operator)
    }
}

struct ReadOperands;

impl<'de> Visitor<'de> for ReadOperands {
    type Value = Operands;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the operands of an operator")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Operands, A::Error> {
        let mut operands = Operands::default();
        while let Some(name) = map.next_key()? {
            operands.read(name, &mut map)?;
        }
        Ok(operands)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;

    /// Each operator with every operand it can have, as JSON.
    const OPERATORS: [(&str, &[&str]); 13] = [
        (r#"{"embed":{"out":"x","weight":"w","scale":"1"}}"#, &[]),
        (
            r#"{"rms_norm":{"input":"x","out":"y","weight":"w","eps":"0.5"}}"#,
            &[],
        ),
        (
            r#"{"linear":{"input":"x","out":"y","weight":"w","bias":"b"}}"#,
            &["bias"],
        ),
        (
            r#"{"qk_norm":{"register":"q","weight":"w","eps":"0.5","heads":4,"over":"head"}}"#,
            &[],
        ),
        (
            r#"{"rope":{"register":"q","heads":4,"dims":16,"theta":"10000","pairing":"half","yarn":{"factor":"40","original_context":4096,"beta_fast":"32","beta_slow":"1","magnitude":"1"}}}"#,
            &["yarn"],
        ),
        (
            r#"{"attention":{"q":"q","k":"k","v":"v","out":"y","heads":4,"kv_heads":2,"scale":"0.25"}}"#,
            &[],
        ),
        (
            r#"{"mla":{"q":"q","latent":"c","k_pe":"p","out":"y","heads":4,"weights":{"joined":"w"},"scale":"0.25"}}"#,
            &[],
        ),
        (
            r#"{"short_conv":{"input":"x","out":"y","weight":"w"}}"#,
            &[],
        ),
        (
            r#"{"mlp":{"input":"x","out":"y","gate":"g","up":"u","down":"d","token_gate":"t"}}"#,
            &["token_gate"],
        ),
        (
            r#"{"router":{"input":"x","weight":"w","selection_bias":"b","form":{"scoring":"softmax","score":"before_top_k","top_k":2,"renormalise":"none","scale":"1"}}}"#,
            &["selection_bias"],
        ),
        (r#"{"experts":{"input":"x","out":"y"}}"#, &[]),
        (r#"{"add":{"input":"x","out":"y","scale":"1"}}"#, &[]),
        (r#"{"lm_head":{"input":"x","weight":"w","scale":"1"}}"#, &[]),
    ];

    fn refused(text: &str, why: &str) {
        let error = serde_json::from_str::<Op>(text).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }

    /// Passes each operator on: its name, its operands, and whether it can do without one.
    fn each(test: impl Fn(&str, &Map<String, Value>, &dyn Fn(&str) -> bool)) {
        for (text, optional) in OPERATORS {
            let value: Value = serde_json::from_str(text).unwrap();
            let (name, operands) = value.as_object().unwrap().iter().next().unwrap();
            test(name, operands.as_object().unwrap(), &|operand| {
                optional.contains(&operand)
            });
        }
    }

    #[test]
    fn what_is_read_is_written_the_same() {
        for (text, _) in OPERATORS {
            let op: Op = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&op).unwrap(), text);
        }
    }

    #[test]
    fn an_operand_is_missed_unless_it_is_optional() {
        each(|name, operands, optional| {
            for operand in operands.keys() {
                let mut without = operands.clone();
                without.remove(operand);
                let text = json!({ name: without }).to_string();
                if optional(operand) {
                    let op: Op = serde_json::from_str(&text).unwrap();
                    assert_eq!(serde_json::to_value(&op).unwrap()[name], json!(without));
                } else {
                    refused(&text, &format!("missing field `{operand}`"));
                }
            }
        });
    }

    #[test]
    fn an_operand_of_none_or_of_another_operator_is_unknown() {
        each(|name, operands, _| {
            for (other, value) in [("other", json!(1)), ("eps", json!("1")), ("dims", json!(1))] {
                if !operands.contains_key(other) {
                    let mut more = operands.clone();
                    more.insert(other.to_owned(), value);
                    let text = json!({ name: more }).to_string();
                    refused(&text, &format!("unknown field `{other}`"));
                }
            }
        });
    }

    #[test]
    fn no_operand_is_stated_twice_or_null() {
        each(|name, operands, _| {
            for (operand, value) in operands {
                let text = json!({ name: operands }).to_string();
                let open = text.strip_suffix("}}").unwrap();
                let twice = format!(r#"{open},"{operand}":{value}}}}}"#);
                refused(&twice, &format!("duplicate field `{operand}`"));
                let mut null = operands.clone();
                null[operand] = Value::Null;
                refused(&json!({ name: null }).to_string(), "null");
            }
            let mut null = operands.clone();
            null.insert("dims".to_owned(), Value::Null);
            refused(&json!({ name: null }).to_string(), "null");
        });
    }

    #[test]
    fn what_is_not_an_object_of_one_operator_is_refused() {
        refused(r#"{"convolve":{}}"#, "unknown variant `convolve`");
        refused(r#""embed""#, "unit variant");
        refused("{}", "");
        refused(
            r#"{"experts":["x","y"]}"#,
            "sequence, expected the operands",
        );
        refused(r#"{"experts":{"input":"x","out":"y"},"add":{}}"#, "");
    }
}
