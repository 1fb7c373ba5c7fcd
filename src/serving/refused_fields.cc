#include "serving/refused_fields.h"

#include "serving/field_reader.h"

namespace spindle::serving {

MaybeError CheckRefusedField(const RefusedField& field, JsonValue value) {
  bool off = false;
  switch (value.type()) {
    case JsonType::kBool:
      off = field.off == 0 && !value.AsBool();
      break;
    case JsonType::kNumber:
      off = value.AsDouble() == field.off;
      break;
    case JsonType::kArray:
    case JsonType::kObject:
      off = value.CountChildren() == 0;
      break;
    default:
      break;
  }
  return off ? MaybeError() : Unsupported(field.name, field.reason);
}

}  // namespace spindle::serving
