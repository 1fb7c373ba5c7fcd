#include "formats/gguf_parser.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <unordered_set>

#include "base/status_macros.h"
#include "formats/byte_reader.h"
#include "formats/tensor_checks.h"

namespace spindle::formats {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kMinVersion = 2;
constexpr uint32_t kMaxVersion = 3;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;
constexpr uint32_t kMaxDimensions = 4;
// Smallest encodings, which bound the counts that a file of a given size can hold.
constexpr uint64_t kMinEntryBytes = 8 + 4 + 1;  // key length, type, value
constexpr uint64_t kMinTensorBytes =
    8 + 4 + 8 + 4 + 8;  // name length, dims, one extent, type, offset
// Far above any vocabulary (262 Ki tokens, 515 Ki merges); widening one-byte elements stays under
// 128 MiB.
constexpr uint64_t kMaxArrayElements = uint64_t{1} << 24;

enum ValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

struct FileType {
  uint32_t number;
  std::string_view name;
  std::optional<DType> type;  // nullopt: known, not supported
};

constexpr FileType kFileTypes[] = {
    {0, "F32", DType::kF32},
    {1, "F16", DType::kF16},
    {2, "Q4_0", DType::kQ4_0},
    {3, "Q4_1", DType::kQ4_1},
    {6, "Q5_0", DType::kQ5_0},
    {7, "Q5_1", DType::kQ5_1},
    {8, "Q8_0", DType::kQ8_0},
    {9, "Q8_1", {}},
    {10, "Q2_K", {}},
    {11, "Q3_K", {}},
    {12, "Q4_K", DType::kQ4_K},
    {13, "Q5_K", DType::kQ5_K},
    {14, "Q6_K", DType::kQ6_K},
    {15, "Q8_K", {}},
    {16, "IQ2_XXS", {}},
    {17, "IQ2_XS", {}},
    {18, "IQ3_XXS", {}},
    {19, "IQ1_S", {}},
    {20, "IQ4_NL", {}},
    {21, "IQ3_S", {}},
    {22, "IQ2_S", {}},
    {23, "IQ4_XS", {}},
    {24, "I8", {}},
    {25, "I16", {}},
    {26, "I32", {}},
    {27, "I64", {}},
    {28, "F64", {}},
    {29, "IQ1_M", {}},
    {30, "BF16", DType::kBF16},
    {34, "TQ1_0", {}},
    {35, "TQ2_0", {}},
    {39, "MXFP4", {}},
};

// One pass over the header; every method names what it was reading when the bytes ended or made no
// sense.
class Parser {
 public:
  Parser(std::span<const uint8_t> file, const std::string& label)
      : file_(file), label_(label), reader_(file) {}

  absl::StatusOr<GgufContents> Parse() {
    SPINDLE_RETURN_IF_ERROR(ReadPreamble());
    SPINDLE_RETURN_IF_ERROR(ReadMeta());
    SPINDLE_RETURN_IF_ERROR(ReadTensors());
    return std::move(contents_);
  }

 private:
  absl::Status Damaged(const std::string& what) const {
    return absl::DataLossError(label_ + ": " + what);
  }

  absl::Status Ends(const std::string& where) const {
    return Damaged("the file ends inside " + where);
  }

  absl::Status ReadPreamble() {
    const std::optional<uint32_t> magic = reader_.Read<uint32_t>();
    if (!magic || *magic != kMagic) {
      return Damaged("not a GGUF file (wrong magic number)");
    }
    const std::optional<uint32_t> version = reader_.Read<uint32_t>();
    if (!version) {
      return Ends("the version");
    }
    if (*version != 0 && (*version & 0xFFFF) == 0) {
      return absl::UnimplementedError(label_ + ": big-endian GGUF");
    }
    if (*version < kMinVersion || *version > kMaxVersion) {
      return absl::UnimplementedError(label_ + ": GGUF version " + std::to_string(*version) +
                                      " (supported: 2, 3)");
    }
    const std::optional<uint64_t> tensors = reader_.Read<uint64_t>();
    const std::optional<uint64_t> entries = reader_.Read<uint64_t>();
    if (!tensors || !entries) {
      return Ends("the counts of tensors and metadata entries");
    }
    if (*entries > reader_.remaining() / kMinEntryBytes) {
      return Damaged("metadata count " + std::to_string(*entries) + " does not fit in the file");
    }
    if (*tensors > reader_.remaining() / kMinTensorBytes) {
      return Damaged("tensor count " + std::to_string(*tensors) + " does not fit in the file");
    }
    num_entries_ = *entries;
    num_tensors_ = *tensors;
    return absl::OkStatus();
  }

  absl::Status ReadMeta() {
    std::unordered_set<std::string_view> keys;
    for (uint64_t i = 0; i < num_entries_; ++i) {
      const std::string ordinal = "metadata entry " + std::to_string(i);
      const std::optional<std::string_view> key = reader_.ReadString();
      if (!key) {
        return Ends("the key of " + ordinal);
      }
      if (!keys.insert(*key).second) {
        return Damaged("metadata key '" + std::string(*key) + "' appears twice");
      }
      const std::optional<uint32_t> type = reader_.Read<uint32_t>();
      if (!type) {
        return Ends("the type of '" + std::string(*key) + "'");
      }
      SPINDLE_ASSIGN_OR_RETURN(MetaValue value,
                               *type == kArray ? ReadArray(*key) : ReadScalar(*type, *key));
      contents_.meta.emplace_back(std::string(*key), std::move(value));
    }
    return absl::OkStatus();
  }

  // Widens the next value of a numeric or boolean type.
  template <typename Stored, typename Wide>
  absl::StatusOr<MetaValue> ReadAs(std::string_view key) {
    const std::optional<Stored> value = reader_.Read<Stored>();
    if (!value) {
      return Ends("the value of '" + std::string(key) + "'");
    }
    return MetaValue(static_cast<Wide>(*value));
  }

  absl::StatusOr<MetaValue> ReadScalar(uint32_t type, std::string_view key) {
    switch (type) {
      case kUint8:
        return ReadAs<uint8_t, uint64_t>(key);
      case kInt8:
        return ReadAs<int8_t, int64_t>(key);
      case kUint16:
        return ReadAs<uint16_t, uint64_t>(key);
      case kInt16:
        return ReadAs<int16_t, int64_t>(key);
      case kUint32:
        return ReadAs<uint32_t, uint64_t>(key);
      case kInt32:
        return ReadAs<int32_t, int64_t>(key);
      case kUint64:
        return ReadAs<uint64_t, uint64_t>(key);
      case kInt64:
        return ReadAs<int64_t, int64_t>(key);
      case kFloat32:
        return ReadAs<float, double>(key);
      case kFloat64:
        return ReadAs<double, double>(key);
      case kBool: {
        const std::optional<uint8_t> value = reader_.Read<uint8_t>();
        if (!value || *value > 1) {
          return Damaged("the value of '" + std::string(key) + "' is not a boolean");
        }
        return MetaValue(*value == 1);
      }
      case kString: {
        const std::optional<std::string_view> value = reader_.ReadString();
        if (!value) {
          return Ends("the value of '" + std::string(key) + "'");
        }
        return MetaValue(std::string(*value));
      }
      default:
        return absl::UnimplementedError(label_ + ": metadata key '" + std::string(key) +
                                        "' has unknown type " + std::to_string(type));
    }
  }

  // REQUIRES: count elements of sizeof(Stored) are there (ReadArray has checked it).
  template <typename Stored, typename Wide>
  MetaValue ReadElements(uint64_t count) {
    std::vector<Wide> values;
    values.reserve(static_cast<size_t>(count));
    for (uint64_t i = 0; i < count; ++i) {
      values.push_back(static_cast<Wide>(*reader_.Read<Stored>()));
    }
    return values;
  }

  absl::StatusOr<MetaValue> ReadUint64Elements(uint64_t count, std::string_view key) {
    std::vector<int64_t> values;
    values.reserve(static_cast<size_t>(count));
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t value = *reader_.Read<uint64_t>();
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return Damaged("array '" + std::string(key) + "' holds a value of 2^63 or more");
      }
      values.push_back(static_cast<int64_t>(value));
    }
    return MetaValue(std::move(values));
  }

  absl::StatusOr<MetaValue> ReadStrings(uint64_t count, std::string_view key) {
    std::vector<std::string> values;
    values.reserve(static_cast<size_t>(count));
    for (uint64_t i = 0; i < count; ++i) {
      const std::optional<std::string_view> value = reader_.ReadString();
      if (!value) {
        return Ends("element " + std::to_string(i) + " of '" + std::string(key) + "'");
      }
      values.emplace_back(*value);
    }
    return MetaValue(std::move(values));
  }

  // Bytes of an element on file (of a string: at least), or 0 for an unknown type.
  static uint64_t ElementBytes(uint32_t type) {
    switch (type) {
      case kUint8:
      case kInt8:
      case kBool:
        return 1;
      case kUint16:
      case kInt16:
        return 2;
      case kUint32:
      case kInt32:
      case kFloat32:
        return 4;
      case kUint64:
      case kInt64:
      case kFloat64:
      case kString:
        return 8;
      default:
        return 0;
    }
  }

  absl::StatusOr<MetaValue> ReadArray(std::string_view key) {
    const std::optional<uint32_t> type = reader_.Read<uint32_t>();
    const std::optional<uint64_t> count = reader_.Read<uint64_t>();
    if (!type || !count) {
      return Ends("array '" + std::string(key) + "'");
    }
    const uint64_t element_bytes = ElementBytes(*type);
    if (element_bytes == 0) {
      return absl::UnimplementedError(label_ + ": array '" + std::string(key) +
                                      "' has element type " + std::to_string(*type));
    }
    if (*count > reader_.remaining() / element_bytes || *count > kMaxArrayElements) {
      return Damaged("array '" + std::string(key) + "' of " + std::to_string(*count) +
                     " elements does not fit in the file or exceeds the limit of " +
                     std::to_string(kMaxArrayElements));
    }
    switch (*type) {
      case kUint8:
      case kBool:
        return ReadElements<uint8_t, int64_t>(*count);
      case kInt8:
        return ReadElements<int8_t, int64_t>(*count);
      case kUint16:
        return ReadElements<uint16_t, int64_t>(*count);
      case kInt16:
        return ReadElements<int16_t, int64_t>(*count);
      case kUint32:
        return ReadElements<uint32_t, int64_t>(*count);
      case kInt32:
        return ReadElements<int32_t, int64_t>(*count);
      case kInt64:
        return ReadElements<int64_t, int64_t>(*count);
      case kUint64:
        return ReadUint64Elements(*count, key);
      case kFloat32:
        return ReadElements<float, double>(*count);
      case kFloat64:
        return ReadElements<double, double>(*count);
      default:
        return ReadStrings(*count, key);
    }
  }

  absl::StatusOr<uint64_t> Alignment() const {
    for (const auto& [key, value] : contents_.meta) {
      if (key == "general.alignment") {
        const uint64_t* alignment = std::get_if<uint64_t>(&value);
        if (alignment == nullptr || *alignment < 8 || *alignment > kMaxAlignment ||
            (*alignment & (*alignment - 1)) != 0) {
          return Damaged("general.alignment must be a power of two in 8..1048576");
        }
        return *alignment;
      }
    }
    return kDefaultAlignment;
  }

  absl::StatusOr<DType> TensorType(uint32_t number, const std::string& where) const {
    for (const FileType& known : kFileTypes) {
      if (known.number == number) {
        if (known.type) {
          return *known.type;
        }
        return absl::UnimplementedError(where + " has unsupported type " + std::string(known.name));
      }
    }
    return absl::UnimplementedError(where + " has unknown type " + std::to_string(number));
  }

  // Reads one entry of the tensor table; its offset from the data area goes to *offset.
  absl::StatusOr<TensorInfo> ReadTensorEntry(uint64_t ordinal, uint64_t* offset) {
    TensorInfo tensor;
    const std::optional<std::string_view> name = reader_.ReadString();
    if (!name) {
      return Ends("the name of tensor " + std::to_string(ordinal));
    }
    tensor.name = std::string(*name);
    const std::string where = label_ + ": tensor '" + tensor.name + "'";
    const std::optional<uint32_t> dimensions = reader_.Read<uint32_t>();
    if (!dimensions) {
      return Ends("the entry of tensor '" + tensor.name + "'");
    }
    if (*dimensions == 0 || *dimensions > kMaxDimensions) {
      return absl::DataLossError(where + " has " + std::to_string(*dimensions) + " dimensions");
    }
    for (uint32_t i = 0; i < *dimensions; ++i) {
      tensor.shape.push_back(reader_.Read<uint64_t>().value_or(0));
    }
    std::reverse(tensor.shape.begin(), tensor.shape.end());  // files list the innermost first
    const std::optional<uint32_t> type = reader_.Read<uint32_t>();
    const std::optional<uint64_t> begin = reader_.Read<uint64_t>();
    if (!type || !begin) {
      return Ends("the entry of tensor '" + tensor.name + "'");
    }
    SPINDLE_ASSIGN_OR_RETURN(tensor.type, TensorType(*type, where));
    *offset = *begin;
    return tensor;
  }

  absl::Status ReadTensors() {
    SPINDLE_ASSIGN_OR_RETURN(const uint64_t alignment, Alignment());
    std::vector<TensorExtent> extents;
    for (uint64_t i = 0; i < num_tensors_; ++i) {
      uint64_t offset = 0;
      SPINDLE_ASSIGN_OR_RETURN(TensorInfo tensor, ReadTensorEntry(i, &offset));
      extents.push_back({offset, 0, contents_.tensors.size()});
      contents_.tensors.push_back(std::move(tensor));
    }
    std::unordered_set<std::string_view> names;
    for (const TensorInfo& tensor : contents_.tensors) {
      if (!names.insert(tensor.name).second) {
        return Damaged("tensor '" + tensor.name + "' appears twice");
      }
    }
    const uint64_t data_begin = (reader_.position() + alignment - 1) / alignment * alignment;
    const uint64_t data_bytes = file_.size() > data_begin ? file_.size() - data_begin : 0;
    for (TensorExtent& extent : extents) {
      TensorInfo& tensor = contents_.tensors[extent.tensor];
      const std::string where = label_ + ": tensor '" + tensor.name + "'";
      SPINDLE_ASSIGN_OR_RETURN(const uint64_t bytes, TensorBytes(tensor.type, tensor.shape, where));
      if (extent.begin % alignment != 0) {
        return absl::DataLossError(where + " is not aligned to " + std::to_string(alignment));
      }
      if (bytes > data_bytes || extent.begin > data_bytes - bytes) {
        return absl::DataLossError(where + " lies beyond the end of the file");
      }
      extent.end = extent.begin + bytes;
      tensor.bytes =
          file_.subspan(static_cast<size_t>(data_begin + extent.begin), static_cast<size_t>(bytes));
    }
    return SortAndCheckOverlap(extents, contents_.tensors, label_);
  }

  std::span<const uint8_t> file_;
  const std::string& label_;
  ByteReader reader_;
  uint64_t num_entries_ = 0;
  uint64_t num_tensors_ = 0;
  GgufContents contents_;
};

}  // namespace

absl::StatusOr<GgufContents> ParseGguf(std::span<const uint8_t> file, const std::string& label) {
  return Parser(file, label).Parse();
}

}  // namespace spindle::formats
