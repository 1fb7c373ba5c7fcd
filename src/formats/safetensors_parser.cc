#include "formats/safetensors_parser.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "formats/byte_reader.h"
#include "formats/tensor_checks.h"

namespace spindle::formats {
namespace {

using Json = nlohmann::json;

// The largest header that the reference implementation accepts.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxSafetensorsDimensions = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

struct Entry {
  std::string name;
  std::string type;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> offsets;
};

// Accepts exactly {"name": {"dtype": text, "shape": [n…], "data_offsets": [b, e]}, "__metadata__":
// {text: text}}. Every event is legal in one place only, so that nothing is stored that nobody
// asked for.
class HeaderHandler final : public nlohmann::json_sax<Json> {
 public:
  // `metadata` null: not kept.
  explicit HeaderHandler(std::map<std::string, std::string>* metadata) : metadata_(metadata) {}

  [[nodiscard]] std::vector<Entry>& entries() { return entries_; }

  [[nodiscard]] const std::string& error() const { return error_; }

  bool start_object(size_t /*elements*/) override {
    if (place_ == Place::kOutside) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ == Place::kTop) {
      place_ = metadata_next_ ? Place::kMetadata : Place::kTensor;
      seen_ = 0;
      field_ = Field::kNone;
      return true;
    }
    return Fail("an object where none belongs");
  }

  bool end_object() override {
    if (place_ == Place::kTensor && seen_ != (kSeenType | kSeenShape | kSeenOffsets)) {
      return Fail("tensor '" + entries_.back().name + "' lacks dtype, shape or data_offsets");
    }
    place_ = place_ == Place::kTop ? Place::kOutside : Place::kTop;
    return true;
  }

  bool key(string_t& text) override {
    if (place_ == Place::kTensor) {
      return TensorKey(text);
    }
    if (place_ == Place::kTop) {
      if (!names_.insert(text).second) {
        return Fail("'" + text + "' appears twice");
      }
      metadata_next_ = text == kMetadataKey;
      if (!metadata_next_) {
        entries_.push_back({text, "", {}, {}});
      }
    }
    if (place_ == Place::kMetadata) {
      metadata_key_ = text;
    }
    return true;
  }

  bool string(string_t& text) override {
    if (place_ == Place::kTensor && field_ == Field::kType) {
      entries_.back().type = text;
      field_ = Field::kNone;
      return true;
    }
    if (place_ == Place::kMetadata && metadata_ != nullptr) {
      (*metadata_)[metadata_key_] = text;
    }
    return place_ == Place::kMetadata || Fail("text where none belongs");
  }

  bool start_array(size_t /*elements*/) override {
    if (place_ != Place::kTensor || (field_ != Field::kShape && field_ != Field::kOffsets)) {
      return Fail("an array where none belongs");
    }
    place_ = Place::kNumbers;
    return true;
  }

  bool end_array() override {
    place_ = Place::kTensor;
    field_ = Field::kNone;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kNumbers) {
      return Fail("a number where none belongs");
    }
    std::vector<uint64_t>& numbers =
        field_ == Field::kShape ? entries_.back().shape : entries_.back().offsets;
    if (numbers.size() == kMaxSafetensorsDimensions) {
      return Fail("tensor '" + entries_.back().name + "' has too many dimensions or offsets");
    }
    numbers.push_back(value);
    return true;
  }

  bool null() override { return Fail("null where none belongs"); }

  bool boolean(bool /*value*/) override { return Fail("a boolean where none belongs"); }

  bool number_integer(number_integer_t /*value*/) override { return Fail("a negative number"); }

  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override {
    return Fail("a number that is not an integer");
  }

  bool binary(binary_t& /*value*/) override { return Fail("binary data"); }

  bool parse_error(size_t position,
                   const std::string& /*last_token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return Fail("not valid JSON at byte " + std::to_string(position));
  }

 private:
  enum class Place : uint8_t { kOutside, kTop, kTensor, kMetadata, kNumbers };
  enum class Field : uint8_t { kNone, kType, kShape, kOffsets };
  static constexpr unsigned kSeenType = 1;
  static constexpr unsigned kSeenShape = 2;
  static constexpr unsigned kSeenOffsets = 4;

  bool Fail(std::string message) {
    error_ = std::move(message);
    return false;
  }

  bool TensorKey(const std::string& text) {
    unsigned bit = 0;
    if (text == "dtype") {
      field_ = Field::kType;
      bit = kSeenType;
    } else if (text == "shape") {
      field_ = Field::kShape;
      bit = kSeenShape;
    } else if (text == "data_offsets") {
      field_ = Field::kOffsets;
      bit = kSeenOffsets;
    }
    if (bit == 0 || (seen_ & bit) != 0) {
      return Fail("tensor '" + entries_.back().name + "' has an unexpected key '" + text + "'");
    }
    seen_ |= bit;
    return true;
  }

  Place place_ = Place::kOutside;
  Field field_ = Field::kNone;
  unsigned seen_ = 0;
  bool metadata_next_ = false;
  std::string metadata_key_;
  std::map<std::string, std::string>* metadata_;
  std::vector<Entry> entries_;
  std::unordered_set<std::string> names_;
  std::string error_;
};

absl::StatusOr<DType> ElementType(const std::string& name, const std::string& where) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (name == Describe(type).name) {
      return type;
    }
  }
  return absl::UnimplementedError(where + " has unsupported type " + name);
}

// Checks one entry against the data area and completes the tensor.
absl::StatusOr<TensorInfo> MakeTensor(Entry& entry,
                                      std::span<const uint8_t> data,
                                      const std::string& label) {
  const std::string where = label + ": tensor '" + entry.name + "'";
  TensorInfo tensor;
  SPINDLE_ASSIGN_OR_RETURN(tensor.type, ElementType(entry.type, where));
  tensor.shape = std::move(entry.shape);
  SPINDLE_ASSIGN_OR_RETURN(const uint64_t bytes, TensorBytes(tensor.type, tensor.shape, where));
  if (entry.offsets.size() != 2 || entry.offsets[0] > entry.offsets[1] ||
      entry.offsets[1] - entry.offsets[0] != bytes) {
    return absl::DataLossError(where + ": data_offsets do not match its shape");
  }
  if (entry.offsets[1] > data.size()) {
    return absl::DataLossError(where + " lies beyond the end of the file");
  }
  tensor.bytes = data.subspan(static_cast<size_t>(entry.offsets[0]), static_cast<size_t>(bytes));
  tensor.name = std::move(entry.name);
  return tensor;
}

}  // namespace

absl::StatusOr<std::vector<TensorInfo>> ParseSafetensors(
    std::span<const uint8_t> file,
    const std::string& label,
    std::map<std::string, std::string>* metadata) {
  ByteReader reader(file);
  const std::optional<uint64_t> header_bytes = reader.Read<uint64_t>();
  if (!header_bytes || *header_bytes > kMaxHeaderBytes || *header_bytes > reader.remaining()) {
    return absl::DataLossError(label + ": the safetensors header does not fit in the file");
  }
  const std::string_view header = *reader.ReadText(*header_bytes);
  HeaderHandler handler(metadata);
  if (!Json::sax_parse(header.begin(), header.end(), &handler)) {
    return absl::DataLossError(label + ": safetensors header: " + handler.error());
  }
  const std::span<const uint8_t> data = file.subspan(reader.position());
  std::vector<TensorInfo> tensors;
  tensors.reserve(handler.entries().size());
  for (Entry& entry : handler.entries()) {
    SPINDLE_ASSIGN_OR_RETURN(TensorInfo tensor, MakeTensor(entry, data, label));
    tensors.push_back(std::move(tensor));
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.bytes.data() < b.bytes.data();
  });
  const uint8_t* expected = data.data();
  for (const TensorInfo& tensor : tensors) {
    if (tensor.bytes.data() != expected) {
      return absl::DataLossError(label + ": tensor '" + tensor.name +
                                 "' overlaps another one or leaves a hole before it");
    }
    expected += tensor.bytes.size();
  }
  if (expected != data.data() + data.size()) {
    return absl::DataLossError(label + ": bytes behind the last tensor");
  }
  return tensors;
}

}  // namespace spindle::formats
